"""`calmrl cp`: a shipped config as a file of one's own."""

from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.printing import note
from calmrl.cli.shared_options import config_names

EXAMPLE = "Example:\n  calmrl cp impute my.yaml\n  calmrl check my.yaml imputer.method=knn"


def run(
    name: Annotated[str, typer.Argument(help="A name that `calmrl ls configs` shows.", autocompletion=config_names)],
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Copy a shipped config to a file, to change it."""
    from calmrl._support.output import new_file
    from calmrl.config import shipped_text

    text = shipped_text(name)
    with new_file(file, force=force) as draft:
        draft.write_text(text, encoding="utf-8")
    note(f"wrote {file}")
