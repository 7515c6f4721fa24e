"""What a page is made of: plain data, without any markup. `web` and `markdown` write it down."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from calmrl.report.svg import Panel


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


@dataclass(frozen=True)
class Figure:
    """Panels with a common caption that says what to see."""

    caption: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Something to copy, under a line that says what it is."""

    label: str
    text: str
    language: str = ""


Block = Table | Figure | Text | Code


@dataclass(frozen=True)
class PageSection:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A title, the answer in sentences, the blocks of the first screen, and the sections below."""

    title: str
    answer: Sequence[str]
    first: Sequence[Block] = field(default_factory=list)
    sections: Sequence[PageSection] = field(default_factory=list)

    def blocks(self) -> list[Block]:
        """All blocks in reading order."""
        return [*self.first, *(block for section in self.sections for block in section.blocks)]
