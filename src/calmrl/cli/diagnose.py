"""`calmrl diagnose`: what is missing, what it costs, and whether imputing it will help."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.printing import Progress, as_json, data, note

EXAMPLE = """Example:
  calmrl diagnose features
  calmrl diagnose features.npz --out diagnosis"""


def run(
    features: Annotated[
        Path,
        typer.Argument(help="A feature directory, a .npz, .safetensors or .parquet file, or the name of a data set."),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="A directory to write, with report and numbers.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Which rows are drawn, and their folds.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier output of calmrl.")] = False,
) -> None:
    """Say what is missing, and whether imputing it will help.

    Before any training.
    """
    from calmrl.workflows import diagnose

    command = f"calmrl diagnose {shlex.quote(str(features))} --out {shlex.quote(str(out))} --seed {seed}"
    with Progress() as bar:
        diagnosis = diagnose(features, out=out, seed=seed, force=force, command=command, progress=bar)
    note(diagnosis.as_text())
    if out is not None:
        note(f"\nopen {out / 'report.html'} to see it; the numbers are in:")
        if not json:
            data(str(out / "diagnosis.json"))
    if json:
        as_json(diagnosis.as_dict())
