"""A reproduced table for people: small tables that fit 80 columns, published and own numbers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calmrl.report.markdown import plain

if TYPE_CHECKING:
    from calmrl.workflows.reproduce.run import Measured, Reproduction

NOTHING = "–"
TOGETHER = 6  # numbers of a row in one small table; names of data sets are long
PRINTED, UNPRINTED = ("paper", "ours", "diff."), ("ours",)


@dataclass(frozen=True)
class Part:
    """Some columns of a table.

    Attributes
    ----------
    columns : list of str
    kinds : tuple of str
        What every column has: the paper's number, ours and the difference; ours alone if the paper prints no number.
    lines : list of (str, list of str)
        A row's name, and its numbers.
    """

    columns: list[str]
    kinds: tuple[str, ...]
    lines: list[tuple[str, list[str]]]


def parts_of(made: Reproduction) -> list[Part]:
    """The table in pieces of few columns; columns of one data set stay together."""
    columns = list(dict.fromkeys(measured.cell.column for measured in made.cells))
    rows = list(dict.fromkeys(measured.cell.row for measured in made.cells))
    cells = {(measured.cell.row, measured.cell.column): measured for measured in made.cells}
    kinds = PRINTED if any(measured.cell.published is not None for measured in made.cells) else UNPRINTED
    parts = []
    for some in _grouped(columns, TOGETHER // len(kinds)):
        shown = {row: [_shown(cells.get((row, column)), made.exhibit.decimals) for column in some] for row in rows}
        lines = [(row, [number[kind] for number in numbers for kind in kinds]) for row, numbers in shown.items()]
        parts.append(Part(some, kinds, lines))
    return parts


def to_markdown(made: Reproduction) -> str:
    """The table as a Markdown page."""
    name = made.exhibit.name
    number = name.removeprefix("table").removeprefix("figure")
    kind = "Table" if name.startswith("table") else "Figure"
    lines = [f"# {kind} {number} of the paper: {plain(made.exhibit.title)}", ""]
    for part in parts_of(made):
        heads = [f"{plain(column)}<br>{kind}" for column in part.columns for kind in part.kinds]
        lines += [_piped(["", *heads]), _piped(["---", *["---:"] * len(heads)])]
        lines += [_piped([plain(row), *numbers]) for row, numbers in part.lines]
        lines.append("")
    lines += [f"- {plain(note)}" for note in made.notes]
    return "\n".join(lines) + "\n"


def _grouped(columns: Sequence[str], most: int) -> list[list[str]]:
    """Columns of one data set stay together, and with others up to `most`."""
    groups: list[list[str]] = []
    for column in columns:
        dataset = column.rpartition(" ")[0]
        if groups and dataset and groups[-1][-1].rpartition(" ")[0] == dataset:
            groups[-1].append(column)
        else:
            groups.append([column])
    packed: list[list[str]] = []
    for group in groups:
        if packed and len(packed[-1]) + len(group) <= most:
            packed[-1] += group
        else:
            packed.append(list(group))
    return packed


def _shown(measured: Measured | None, decimals: int) -> dict[str, str]:
    """Kind of number -> its text."""
    if measured is None:
        return dict.fromkeys(PRINTED, "")
    difference = measured.difference
    gap = NOTHING if difference is None else f"{difference:+,.{decimals}f}".replace("-", "−")
    return {"paper": _number(measured.cell.published, decimals), "ours": _number(measured.ours, decimals), "diff.": gap}


def _number(value: float | None, decimals: int) -> str:
    return NOTHING if value is None else f"{value:,.{decimals}f}"


def _piped(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
