"""`calmrl demo`: the comparison on bundled real data."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.printing import note

EXAMPLE = """Example:
  calmrl demo --out demo-out
  calmrl demo --out quick 'seeds=[0]' 'methods=[pmrl, calmrl]' steps=50"""


def run(
    out: Annotated[Path, typer.Option("--out", help="The directory to write; a run that was stopped goes on there.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    config: Annotated[str, typer.Option("--config", help="A config file or a shipped config.")] = "demo",
    force: Annotated[bool, typer.Option("--force", help="Begin anew: remove an earlier output of calmrl.")] = False,
) -> None:
    """Train every method on bundled real data with missing modalities, and compare."""
    from calmrl._support.output import check_free
    from calmrl.cli.comparison_table import compare_and_show
    from calmrl.config import CompareConfig, load

    resolved = load(config, overrides or [], kind="compare")
    assert isinstance(resolved, CompareConfig)
    if force and out.exists():
        check_free(out, force=True)
        shutil.rmtree(out)
    note("comparing methods on rows that lack modalities: one to three minutes on two cores")
    compare_and_show(resolved, out, " ".join(["calmrl demo --out", str(out), *(overrides or [])]))
