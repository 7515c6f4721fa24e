"""`calmrl remove`: items leave an index; their files stay."""

from typing import Annotated

import typer

from calmrl._support.places import check_index
from calmrl._support.text import plural
from calmrl.cli.printing import note

EXAMPLE = """Example:
  calmrl remove photos.index 2024/beach 2024/boat"""


def run(
    index: Annotated[str, typer.Argument(help="An index.")],
    ids: Annotated[list[str], typer.Argument(help="Ids of items.")],
) -> None:
    """Remove items from an index, in one commit. Files are not touched, and calmrl add does not bring them back unasked.

    An unknown id is an error, and nothing is removed then.
    """
    check_index(index)
    from calmrl.search import Index

    opened = Index.open(index)
    count = opened.remove(ids)
    note(f"removed {plural(count, 'item')}; {len(opened)} are left")
