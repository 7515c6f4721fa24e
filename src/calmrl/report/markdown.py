"""A page as Markdown; its drawings, pictures and sounds are files in the folder `figures` beside it."""

from __future__ import annotations

import re
from itertools import count

from calmrl._support.visible import visible
from calmrl.report.blocks import Block, Cell, Code, Figure, Heading, Number, Page, Picture, Sound, Table
from calmrl.report.svg import standalone

FOLDER = "figures"


def as_markdown(page: Page) -> str:
    """The text. `drawings` gives the files it refers to."""
    tables, figures = count(1), count(1)
    parts = [f"# {plain(page.title)}", *map(plain, page.answer)]
    parts += [_block(block, tables, figures) for block in page.first]
    for section in page.sections:
        parts += [f"## {plain(section.title)}", *(_block(block, tables, figures) for block in section.blocks)]
    return "\n\n".join(parts) + "\n"


def drawings(page: Page) -> dict[str, bytes]:
    """File name in `figures` -> content."""
    found: dict[str, bytes] = {}
    for block in page.blocks():
        if isinstance(block, Figure):
            found |= {f"{panel.name}.svg": standalone(panel).encode() for panel in block.panels}
        elif isinstance(block, Table):
            found |= {part.name: part.jpeg if isinstance(part, Picture) else part.content for part in _media(block)}
    return found


def plain(text: str) -> str:
    """Text that Markdown and HTML inside Markdown leave alone, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#~$&])", r"\\\1", visible(" ".join(text.split())))


def _block(block: Block, tables: count[int], figures: count[int]) -> str:
    if isinstance(block, Table):
        return _table(block, next(tables))
    if isinstance(block, Figure):
        images = "\n".join(f"![{plain(panel.alt)}]({FOLDER}/{panel.name}.svg)" for panel in block.panels)
        return f"{images}\n\n**Figure {next(figures)}.** {plain(block.caption)}"
    if isinstance(block, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        return f"{plain(block.label)}\n\n{fence}{block.language}\n{visible(block.text)}\n{fence}"
    return plain(block.text)


def _table(table: Table, number: int) -> str:
    head = [f"{h.text} ({h.note})" if isinstance(h, Heading) else h for h in table.head]
    rule = "|".join("---:" if numeric(table, j) else "---" for j in range(len(head)))
    body = [f"| {' | '.join(map(_cell, line))} |" for line in [*table.lines, *table.apart]]
    top = [f"**Table {number}.** {plain(table.caption)}", "", f"| {' | '.join(map(plain, head))} |", f"|{rule}|"]
    return "\n".join([*top, *body])


def numeric(table: Table, column: int) -> bool:
    """Whether a column holds numbers."""
    return any(isinstance(line[column], Number) for line in [*table.lines, *table.apart])


def _cell(cell: str | Cell | Number) -> str:
    if isinstance(cell, Number):
        text = f"**{plain(cell.text)}**" if cell.best else plain(cell.text)
        return text + (f" ({plain(cell.note)})" if cell.note else "")
    cell = Cell(cell) if isinstance(cell, str) else cell
    text = plain(cell.text)
    picture = f"![{plain(cell.picture.alt)}]({FOLDER}/{cell.picture.name}) " if cell.picture else ""
    return picture + text + (f" [listen]({FOLDER}/{cell.sound.name})" if cell.sound else "")


def _media(table: Table) -> list[Picture | Sound]:
    cells = [cell for line in [*table.lines, *table.apart] for cell in line if isinstance(cell, Cell)]
    return [part for cell in cells for part in (cell.picture, cell.sound) if part is not None]
