"""Text for people: wording that several pages share, the name that was meant, and one table with its renderers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calmrl._support.parsing import visible

if TYPE_CHECKING:
    from rich.table import Table as RichTable


def closest(name: str, names: Iterable[str]) -> str | None:
    """The name most like `name`, or None when nothing is close."""
    hits = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return hits[0] if hits else None


def plural(count: int, one: str, many: str = "") -> str:
    """1 seed, 3,000 seeds; 1 modality, 2 modalities."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)


def beginning(names: Sequence[str], most: int, form: str = "{}") -> str:
    """a, b, c and 4 more"""
    return ", ".join(map(form.format, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def capital(text: str) -> str:
    """With a capital first letter."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """With a capital first letter and one full stop at the end."""
    return capital(text).rstrip(".") + "."


def fixed(value: float, decimals: int) -> str:
    """A number with fixed decimals and a proper minus sign; never -0."""
    text = f"{value:,.{decimals}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


MEDIA = "figures"  # the folder beside a Markdown file that holds its drawings, pictures and sounds


@dataclass(frozen=True)
class Number:
    """A cell with a number: how it reads ("27.3 ± 0.8"), what it sorts by, and whether it is the best of its column."""

    text: str
    value: float
    best: bool = False
    note: str = ""  # small, below the number


@dataclass(frozen=True)
class Picture:
    """A small picture beside a caption: a file name, the bytes of a JPEG, and what it shows."""

    name: str
    jpeg: bytes
    alt: str


@dataclass(frozen=True)
class Sound:
    """A short sound beside a caption: a file name, its bytes, their type ("audio/mpeg"), and what it is."""

    name: str
    content: bytes
    type: str
    alt: str


@dataclass(frozen=True)
class Cell:
    """A cell with words."""

    text: str
    picture: Picture | None = None
    sound: Sound | None = None


@dataclass(frozen=True)
class Heading:
    """A heading of a column with a small line below it."""

    text: str
    note: str


Line = Sequence[str | Cell | Number]


@dataclass(frozen=True)
class Table:
    """Lines under headings; the first cell of a line names it. `apart` are lines below a rule that do not compete."""

    caption: str
    head: Sequence[str | Heading]
    lines: Sequence[Line]
    apart: Sequence[Line] = ()
    sortable: bool = True

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return any(isinstance(line[column], Number) for line in [*self.lines, *self.apart])

    def media(self) -> list[Picture | Sound]:
        """All pictures and sounds."""
        cells = [cell for line in [*self.lines, *self.apart] for cell in line if isinstance(cell, Cell)]
        return [part for cell in cells for part in (cell.picture, cell.sound) if part is not None]


def escaped(text: str) -> str:
    """Text that Markdown and HTML inside Markdown leave alone, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#~$&])", r"\\\1", visible(" ".join(text.split())))


def to_markdown(table: Table) -> str:
    """A pipe table, without its caption; numbers to the right, the best in bold."""
    head = [f"{h.text} ({h.note})" if isinstance(h, Heading) else h for h in table.head]
    right = [table.numeric(column) for column in range(len(head))]
    return pipes([*map(escaped, head)], [[*map(_markdown_cell, line)] for line in [*table.lines, *table.apart]], right)


def pipes(head: Sequence[str], lines: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> str:
    """A pipe table of cells that are Markdown already; `right` says which columns hold numbers."""
    rule = ["---:" if j < len(right) and right[j] else "---" for j in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def _markdown_cell(cell: str | Cell | Number) -> str:
    if isinstance(cell, str):
        return escaped(cell)
    if isinstance(cell, Number):
        text = f"**{escaped(cell.text)}**" if cell.best else escaped(cell.text)
        return text + (f" ({escaped(cell.note)})" if cell.note else "")
    picture = f"![{escaped(cell.picture.alt)}]({MEDIA}/{cell.picture.name}) " if cell.picture else ""
    return picture + escaped(cell.text) + (f" [listen]({MEDIA}/{cell.sound.name})" if cell.sound else "")


def to_terminal(table: Table, *, edge: bool = False, name_width: int | None = None, width: int = 0) -> RichTable:
    """What a rich console prints: names to the left, the rest to the right, `apart` below a rule.

    `edge` leaves an empty line above and below. Names longer than `name_width` are folded; the other columns have at
    least `width` letters.
    """
    from rich import box
    from rich.table import Table as RichTable

    tight: dict[str, Any] = {"show_edge": False, "pad_edge": False, "collapse_padding": True}
    style: dict[str, Any] = {"padding": (0, 1, 0, 0)} if edge else tight
    made = RichTable(box=box.SIMPLE, show_footer=bool(table.apart), **style)
    for j, head in enumerate(table.head):
        text = f"{head.text}\n{head.note}" if isinstance(head, Heading) else head
        footer = "\n".join(_text(line[j]) for line in table.apart)
        if j == 0:
            longest = max((len(_text(line[0])) for line in table.lines), default=0)
            whole: dict[str, Any] = {"no_wrap": True, "min_width": longest}
            folded: dict[str, Any] = {"max_width": name_width, "overflow": "fold"} if name_width else whole
            made.add_column(visible(text), footer, **folded)
        else:
            made.add_column(visible(text), footer, justify="right", min_width=width or None)
    for line in table.lines:
        made.add_row(*map(_text, line))
    return made


def to_text(table: Table) -> str:
    """Plain text: the first column to the left, the others to the right."""
    lines = [[h.text if isinstance(h, Heading) else h for h in table.head], *([*map(_text, x)] for x in table.lines)]
    widths = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
    aligned = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join(map("  ".join, aligned))


def _text(cell: str | Cell | Number) -> str:
    return visible(cell if isinstance(cell, str) else cell.text)
