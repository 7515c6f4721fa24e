"""`calmrl add`: what is new or changed in a source goes into an index."""

from typing import Annotated

import typer

from calmrl._support.places import check_index
from calmrl.cli.printing import Progress, as_json, note
from calmrl.cli.shared_options import check_source

EXAMPLE = """Example:
  calmrl add photos.index photos
  calmrl add photos.index photos --prune
  calmrl add photos.index photos/dogs/rex.png"""


def run(
    index: Annotated[str, typer.Argument(help="An index.")],
    source: Annotated[str, typer.Argument(help="A folder (usually as before), a file in it, a manifest, features.")],
    prune: Annotated[bool, typer.Option("--prune", help="Remove items that are gone from this source.")] = False,
    removed: Annotated[bool, typer.Option("--removed", help="Also add items that calmrl remove took out.")] = False,
    refit: Annotated[
        bool | None,
        typer.Option(
            "--refit/--no-refit", help="Fit the space again, or never; by default where pairs grew and it pays."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Ids as JSON on stdout.")] = False,
) -> None:
    """Add to an index what is new or changed in a source.

    In one commit; only new content is encoded. Items of a folder that calmrl remove took out stay out, unless a
    file of theirs is named. Where pairs have grown by half and it pays, the space is fitted again. Run the same line again to
    continue where it stopped.
    """
    check_index(index)
    check_source(source)
    from dataclasses import asdict

    from calmrl.search import Index

    with Progress() as progress:
        change = Index.open(index).add(source, prune=prune, removed=removed, refit=refit, progress=progress)
    for line in change.lines():
        note(line)
    if json:
        as_json(asdict(change))
