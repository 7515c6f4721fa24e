"""`calmrl compare`: all methods on one's own data, under one budget."""

from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.completion import config_names, method_list

EXAMPLE = """Example:
  calmrl compare demo --methods calmrl,pmrl --seeds 3 --out runs/two
  calmrl compare my.yaml --out runs/mine
  calmrl compare my.yaml --out runs/mine workers=8"""


def run(
    config: Annotated[
        str, typer.Argument(help="A config file or a shipped config of kind compare.", autocompletion=config_names)
    ],
    out: Annotated[Path, typer.Option("--out", help="The directory to write; a run that was stopped goes on there.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, to change single keys.")] = None,
    methods: Annotated[
        str | None,
        typer.Option("--methods", help="Comma-separated. [default: those of the config]", autocompletion=method_list),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many: 0, 1, ...")] = None,
) -> None:
    """Compare methods: same rows, same steps, same number of trials, chosen on validation rows."""
    from calmrl.cli.comparison_table import compare_and_show
    from calmrl.config import CompareConfig, load

    changes = list(overrides or [])
    if methods is not None:
        changes.append(f"methods=[{methods}]")
    if seeds is not None:
        changes.append(f"seeds={list(range(seeds))}")
    resolved = load(config, changes, kind="compare")
    assert isinstance(resolved, CompareConfig)
    compare_and_show(resolved, out, " ".join(["calmrl compare", config, *changes, "--out", str(out)]))
