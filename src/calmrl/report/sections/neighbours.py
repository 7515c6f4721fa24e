"""What was found for single queries, with captions and, where the files are there, small pictures."""

from __future__ import annotations

import base64
import io
from itertools import count
from pathlib import Path

from calmrl.data.media.images import open_image
from calmrl.data.media.unreadable import Unreadable
from calmrl.report.blocks import Block, Cell, Line, Number, Picture, Table
from calmrl.report.estimates_table import readable
from calmrl.report.results import FoundItem, Neighbours, Results

QUERIES = 8  # per method and direction
FOUND = 5  # per query
SIDE = 96  # pixels
INSIDE = "data:image/"  # a picture that results.json holds itself


def neighbours(results: Results) -> list[Block]:
    """A table per direction: query, method, rank of its own item, the first found."""
    album = _Album()
    return [
        _table(task, [each for each in source.meta.neighbours if each.task == task], source.folder, album)
        for source in results.sources
        for task in dict.fromkeys(each.task for each in source.meta.neighbours)
    ]


def _table(task: str, every: list[Neighbours], folder: Path, album: _Album) -> Table:
    shown = _first(every)
    width = max(min(FOUND, len(each.found)) for each in shown)
    before = len(album.unread)
    lines: list[Line] = []
    for each in shown:
        items = [Cell(_caption(item), album.picture(folder, item.picture, item.caption)) for item in each.found[:FOUND]]
        query = Cell(each.query, album.picture(folder, each.picture, each.query))
        lines.append([query, each.method, Number(str(each.rank), each.rank), *items, *[""] * (width - len(items))])
    caption = f"{readable(task)}: what is found for a query, nearest first; ✓ is the query's own item."
    if len(shown) < len(every):
        caption += f" The first {QUERIES} queries of each method; results.json has {len(every)} lines."
    if len(album.unread) > before:
        caption += f" {len(album.unread) - before} pictures could not be read, first {album.unread[before]}."
    return Table(caption, ["query", "method", "rank of its own", *(f"found {i + 1}" for i in range(width))], lines)


def _caption(item: FoundItem) -> str:
    return f"{item.caption or item.id}{' ✓' if item.own else ''}"


def _first(every: list[Neighbours]) -> list[Neighbours]:
    """The first queries of each method, query by query, so that methods can be compared."""
    taken: dict[str, list[Neighbours]] = {}
    for each in every:
        taken.setdefault(each.method, []).append(each)
    kept = [each for found in taken.values() for each in found[:QUERIES]]
    order = list(dict.fromkeys(each.query for each in kept))
    return sorted(kept, key=lambda each: order.index(each.query))


class _Album:
    """Small pictures, numbered; `unread` names files that are not there or not pictures."""

    def __init__(self) -> None:
        self.numbers, self.unread = count(1), list[str]()

    def picture(self, folder: Path, source: str | None, text: str) -> Picture | None:
        """The picture of a path from `folder`, or of a data URI."""
        if source is None:
            return None
        inside = source.startswith(INSIDE)
        try:
            small = open_image(base64.b64decode(source.partition(",")[2]) if inside else folder / source)
        except Unreadable:
            self.unread.append("one inside results.json" if inside else source)
            return None
        small.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=80)
        return Picture(f"picture-{next(self.numbers)}.jpg", buffer.getvalue(), f"picture: {text}")
