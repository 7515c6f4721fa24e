"""A reproduced table for people: small tables that fit 80 columns, published and own numbers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calmrl.report.markdown import plain

if TYPE_CHECKING:
    from calmrl.workflows.reproduce.run import Measured, Reproduction

NOTHING = "–"
TOGETHER = 3  # columns of the paper in one small table
KINDS = ("paper", "ours", "diff.")


@dataclass(frozen=True)
class Part:
    """Some columns of a table; each line has a row's name, and for every column the paper's number, ours, the difference."""

    columns: list[str]
    lines: list[tuple[str, list[tuple[str, str, str]]]]


def parts_of(made: Reproduction) -> list[Part]:
    """The table in pieces of few columns; columns of one data set stay together."""
    columns = list(dict.fromkeys(measured.cell.column for measured in made.cells))
    rows = list(dict.fromkeys(measured.cell.row for measured in made.cells))
    cells = {(measured.cell.row, measured.cell.column): measured for measured in made.cells}
    decimals = made.exhibit.decimals
    return [
        Part(some, [(row, [_shown(cells.get((row, column)), decimals) for column in some]) for row in rows])
        for some in _grouped(columns)
    ]


def to_markdown(made: Reproduction) -> str:
    """The table as a Markdown page."""
    name = made.exhibit.name
    number = name.removeprefix("table").removeprefix("figure")
    kind = "Table" if name.startswith("table") else "Figure"
    lines = [f"# {kind} {number} of the paper: {plain(made.exhibit.title)}", ""]
    for part in parts_of(made):
        heads = [f"{plain(column)}<br>{kind}" for column in part.columns for kind in KINDS]
        lines += [_piped(["", *heads]), _piped(["---", *["---:"] * len(heads)])]
        lines += [_piped([plain(row), *(text for cell in cells for text in cell)]) for row, cells in part.lines]
        lines.append("")
    lines += [f"- {plain(note)}" for note in made.notes]
    return "\n".join(lines) + "\n"


def _grouped(columns: Sequence[str]) -> list[list[str]]:
    """Columns that share their first word, and groups that are small enough together."""
    groups: list[list[str]] = []
    for column in columns:
        dataset = column.rpartition(" ")[0]
        if groups and dataset and groups[-1][-1].rpartition(" ")[0] == dataset:
            groups[-1].append(column)
        else:
            groups.append([column])
    packed: list[list[str]] = []
    for group in groups:
        if packed and len(packed[-1]) + len(group) <= TOGETHER:
            packed[-1] += group
        else:
            packed.append(list(group))
    return packed


def _shown(measured: Measured | None, decimals: int) -> tuple[str, str, str]:
    if measured is None:
        return "", "", ""
    difference = measured.difference
    gap = NOTHING if difference is None else f"{difference:+,.{decimals}f}".replace("-", "−")
    return _number(measured.cell.published, decimals), _number(measured.ours, decimals), gap


def _number(value: float | None, decimals: int) -> str:
    return NOTHING if value is None else f"{value:,.{decimals}f}"


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
