"""What a table or figure of the paper holds: cells with a published number, and where ours comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

COUNTS = "counts"  # the maker of numbers of items
FEATURES_OF_OTHERS = ("imagebind", "internvideo", "languagebind")  # models of others: folders of features/


@dataclass(frozen=True)
class Value:
    """One of our measurements.

    Attributes
    ----------
    maker : str
        A run of RUNS, a name of FEATURES_OF_OTHERS, or COUNTS.
    collection : str
        What it is measured on; "" for the training of a run itself.
    task, metric : str
        As in results.json.
    """

    maker: str
    collection: str
    task: str
    metric: str


@dataclass(frozen=True)
class Cell:
    """A number of the paper, None where none is printed, and the values whose mean is ours."""

    row: str
    column: str
    published: float | None
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Exhibit:
    """A table or figure.

    Attributes
    ----------
    name : str
        table1, figure3, ..., by order of appearance.
    title : str
    cells : tuple of Cell
        Row by row.
    decimals : int
        That numbers are shown with.
    notes : tuple of str
        What must be known to compare.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    decimals: int = 1
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> list[Value]:
        """All measurements behind the cells, each once."""
        return list(dict.fromkeys(value for cell in self.cells for value in cell.values))

    @property
    def makers(self) -> list[str]:
        """Who makes them, in order of appearance."""
        return list(dict.fromkeys(value.maker for value in self.values))


@dataclass(frozen=True)
class PublishedTable:
    """The numbers of a table as printed."""

    title: str
    columns: tuple[str, ...]
    rows: Mapping[str, Sequence[float | None]]

    def number(self, row: str, column: str) -> float | None:
        """A printed number; None where the paper prints a dash."""
        return self.rows[row][self.columns.index(column)]


@cache
def published(name: str) -> PublishedTable:
    """The numbers of one table of the paper."""
    text = (files("calmrl.workflows.reproduce") / "published.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = yaml.safe_load(text)[name]
    return PublishedTable(table["title"], tuple(table["columns"]), table["rows"])
