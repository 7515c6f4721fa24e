"""What was found for single queries, with captions and, where the files are there, small pictures and sounds."""

from __future__ import annotations

from pathlib import Path

from calmrl.data.features.relevance import ROW
from calmrl.report.album import Album
from calmrl.report.blocks import Block, Cell, Line, Number, Table
from calmrl.report.estimates_table import readable
from calmrl.report.results import FoundItem, Neighbours, Results

QUERIES = 8  # per method and direction
FOUND = 5  # per query


def neighbours(results: Results) -> list[Block]:
    """A table per direction: query, method, rank of the first item that counts, the first found."""
    album = Album()
    return [
        _table(task, [each for each in source.meta.neighbours if each.task == task], source.folder, album)
        for source in results.sources
        for task in dict.fromkeys(each.task for each in source.meta.neighbours)
    ]


def _table(task: str, every: list[Neighbours], folder: Path, album: Album) -> Table:
    shown = _first(every)
    width = max(min(FOUND, len(each.found)) for each in shown)
    before = len(album.unread)
    lines: list[Line] = []
    for each in shown:
        items = [album.cell(folder, item, _caption(item), item.caption) for item in each.found[:FOUND]]
        query = album.cell(folder, each, each.query, each.query)
        lines.append([query, each.method, Number(str(each.rank), each.rank), *items, *[""] * (width - len(items))])
    mark, rank = _counting(shown)
    caption = f"{readable(task)}: what is found for a query, nearest first; {mark}."
    if len(shown) < len(every):
        caption += f" The first {QUERIES} queries of each method; results.json has {len(every)} lines."
    if any(isinstance(cell, Cell) and cell.sound for line in lines for cell in line):
        caption += " Sounds are cut after some seconds."
    if len(album.unread) > before:
        caption += f" {len(album.unread) - before} files could not be read, first {album.unread[before]}."
    return Table(caption, ["query", "method", rank, *(f"found {i + 1}" for i in range(width))], lines)


def _counting(shown: list[Neighbours]) -> tuple[str, str]:
    """(what the mark means, heading of the rank)"""
    columns = [column for column in dict.fromkeys(each.relevant_by for each in shown) if column != ROW]
    if not columns:
        return "✓ is the query's own item", "rank of its own"
    return f"✓ has the {' or '.join(columns)} of the query", "rank of the first ✓"


def _caption(item: FoundItem) -> str:
    return f"{item.caption or item.id}{' ✓' if item.own or item.relevant else ''}"


def _first(every: list[Neighbours]) -> list[Neighbours]:
    """The first queries of each method, query by query, so that methods can be compared."""
    taken: dict[str, list[Neighbours]] = {}
    for each in every:
        taken.setdefault(each.method, []).append(each)
    kept = [each for found in taken.values() for each in found[:QUERIES]]
    order = list(dict.fromkeys(each.query for each in kept))
    return sorted(kept, key=lambda each: order.index(each.query))
