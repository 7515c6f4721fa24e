"""`calmrl init`: configs for one's own collection."""

from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.printing import data, note
from calmrl.cli.shared_options import AnnotationsOption, CollectionOption, MediaOption, collection_of

EXAMPLE = """Example:
  calmrl init pictures-and-sounds --out work
  calmrl init items.csv --out work
  calmrl init features.npz --out work
  calmrl init clotho --collection clotho:v2 --out work"""


def run(
    source: Annotated[Path, typer.Argument(help="A folder of files, a table of files, or features.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write configs and notes to.")],
    collection: CollectionOption = None,
    annotations: AnnotationsOption = None,
    media: MediaOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace configs and notes that are there.")] = False,
) -> None:
    """Look at a collection and write configs for it.

    Says what is in it; the configs run as they are.
    """
    from calmrl.workflows.init import init

    start = init(collection_of(source, collection, annotations, media) or source, out, force=force)
    for line in [*start.survey.lines(), *start.notes]:
        note(line)
    note(f"wrote {', '.join(file.name for file in start.files)} to:")
    data(str(out))
    note("next:")
    for line in start.commands:
        note(f"  {line}")
