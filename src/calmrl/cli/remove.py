"""`calmrl remove`: items leave an index; their files stay."""

from typing import Annotated

import typer

from calmrl._support.places import check_index
from calmrl._support.text import plural
from calmrl.cli.printing import note
from calmrl.errors import InputError

EXAMPLE = """Example:
  calmrl remove photos.index 2024/beach 2024/boat
  calmrl remove --gone"""


def run(
    index: Annotated[str | None, typer.Argument(help="An index.")] = None,
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of items.")] = None,
    gone: Annotated[
        bool,
        typer.Option("--gone", help="Instead: indexes in the user's cache whose folder is gone (calmrl ls indexes)."),
    ] = False,
) -> None:
    """Remove items from an index, in one commit. Files are not touched, and calmrl add does not bring them back unasked.

    An unknown id is an error, and nothing is removed then.
    """
    if gone:
        if index is not None:
            raise InputError(f"--gone is about the indexes in the cache, so {index} says nothing; leave it out")
        from calmrl.workflows.index import remove_gone

        note(f"removed {plural(remove_gone(note), 'index', 'indexes')}")
        return
    if index is None or not ids:
        raise InputError("name an index and the ids of items to remove; or pass --gone")
    check_index(index)
    from calmrl.search import Index

    opened = Index.open(index)
    count = opened.remove(ids)
    note(f"removed {plural(count, 'item')}; {len(opened)} are left")
