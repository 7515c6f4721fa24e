"""A page of plain data, written as one HTML file, and as Markdown with figures beside it."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from calmrl._support.output import new_file
from calmrl._support.parsing import visible
from calmrl._support.text import MEDIA, escaped, to_markdown
from calmrl._support.text import Cell as Cell
from calmrl._support.text import Number as Number
from calmrl._support.text import Picture as Picture
from calmrl._support.text import Table as Table
from calmrl.errors import InputError
from calmrl.report.figures import Panel, inline, standalone


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


def as_markdown(page: Page) -> str:
    """The text. `drawings` gives the files it refers to."""
    tables, figures = count(1), count(1)
    parts = [f"# {escaped(page.title)}", *map(escaped, page.answer)]
    parts += [_block(block, tables, figures) for block in page.first]
    for section in page.sections:
        parts += [f"## {escaped(section.title)}", *(_block(block, tables, figures) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


def drawings(page: Page) -> dict[str, bytes]:
    """File name in `figures` -> content."""
    found: dict[str, bytes] = {}
    for block in page.blocks():
        if isinstance(block, Figure):
            found |= {f"{panel.name}.svg": standalone(panel).encode() for panel in block.panels}
        elif isinstance(block, Table):
            found |= {part.name: part.jpeg if isinstance(part, Picture) else part.content for part in block.media()}
    return found


def _block(block: Block, tables: count[int], figures: count[int]) -> str:
    if isinstance(block, Table):
        return f"**Table {next(tables)}.** {escaped(block.caption)}\n\n{to_markdown(block)}"
    if isinstance(block, Figure):
        images = "\n".join(f"![{escaped(panel.alt)}]({MEDIA}/{panel.name}.svg)" for panel in block.panels)
        return f"{images}\n\n**Figure {next(figures)}.** {escaped(block.caption)}"
    if isinstance(block, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        return f"{escaped(block.label)}\n\n{fence}{block.language}\n{visible(block.text)}\n{fence}"
    return escaped(block.text)


def as_html(page: Page) -> str:
    """The whole file. The same page gives the same bytes."""
    from jinja2 import Environment
    from markupsafe import Markup, escape

    names = ("page.html.jinja", "page.css", "page.js")
    form, style, script = ((files("calmrl.report") / name).read_text(encoding="utf-8") for name in names)
    environment = Environment(autoescape=True, keep_trailing_newline=True, finalize=_visible)
    environment.globals |= {
        **{"next": next, "tables": count(1), "figures": count(1), "inline": inline, "id": _id},
        "split": lambda text: text.partition(" ± ")[::2],
        "base64": lambda content: base64.b64encode(content).decode(),
        "breakable": lambda text: escape(visible(text)).replace("+", Markup("+<wbr>")),  # where a long name may break
    }
    return environment.from_string(form).render(page=page, style=style, script=script)


def _visible(value: Any) -> Any:
    """What a page shows: plain text without characters that act; markup was made from such text."""
    return visible(value) if type(value) is str else value


def _id(section: PageSection) -> str:
    return "s-" + re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")


def write_page(page: Page, target: str | Path, *, force: bool = False) -> list[Path]:
    """Write `target` (ending in .html), the same as .md, and the drawings the latter needs; returns what was written.

    Nothing is written unless everything can be; files that are there are replaced only with `force`.

    Examples
    --------
    >>> write_page(build_page(read_results(["run-1"])), "one.html")  # doctest: +SKIP
    """
    target = Path(target)
    if target.suffix != ".html":
        raise InputError(f"{target} should end in .html; the Markdown file beside it gets the same name with .md")
    files = {target: as_html(page).encode(), target.with_suffix(".md"): as_markdown(page).encode()}
    files |= {target.parent / MEDIA / name: content for name, content in drawings(page).items()}
    taken = [path for path in files if path.exists()]
    if taken and not force:
        raise InputError(f"{taken[0]} exists; choose another name, or pass `force=True` to replace it")
    for path, content in files.items():
        with new_file(path, force=force) as draft:
            draft.write_bytes(content)
    return list(files)


def import_drawing() -> None:
    """Import what pages and their drawings need, for a time when there is nothing else to do; it takes about a second."""
    import jinja2  # noqa: F401
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401
