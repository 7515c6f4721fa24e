"""A page as one HTML file that needs nothing else: style, script and drawings are inside."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import count

from calmrl.report.blocks import Block, Cell, Code, Figure, Heading, Line, Number, Page, PageSection, Table
from calmrl.report.svg import inline

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
{style}</style>
</head>
<body>
<main>
"""
TAIL = """</main>
<script>
{script}</script>
</body>
</html>
"""


def as_html(page: Page) -> str:
    """The whole file. The same page gives the same bytes."""
    here = files("calmrl.report")
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    write = _Writer()
    parts = [HEAD.format(title=escape(page.title), style=style), f"<h1>{escape(page.title)}</h1>"]
    if page.answer:
        parts.append('<div class="answer">')
        parts += [f"<p>{escape(sentence)}</p>" for sentence in page.answer]
        parts.append("</div>")
    parts += [write.block(block) for block in page.first]
    if len(page.sections) > 1:
        parts.append('<nav aria-label="Contents"><ul>')
        parts += [f'<li><a href="#{_id(section)}">{escape(section.title)}</a></li>' for section in page.sections]
        parts.append("</ul></nav>")
    for section in page.sections:
        parts.append(f'<section id="{_id(section)}">\n<h2>{escape(section.title)}</h2>')
        parts += [write.block(block) for block in section.blocks]
        parts.append("</section>")
    return "\n".join(parts) + "\n" + TAIL.format(script=script)


class _Writer:
    """Blocks as HTML, figures and tables numbered as they come."""

    def __init__(self) -> None:
        self.tables, self.figures = count(1), count(1)

    def block(self, block: Block) -> str:
        if isinstance(block, Table):
            return self.table(block)
        if isinstance(block, Figure):
            return self.figure(block)
        if isinstance(block, Code):
            return f"<p>{escape(block.label)}</p>\n<pre><code>{escape(block.text)}</code></pre>"
        return f"<p>{escape(block.text)}</p>"

    def figure(self, figure: Figure) -> str:
        drawings = "\n".join(inline(panel) for panel in figure.panels)
        caption = f"<b>Figure {next(self.figures)}.</b> {escape(figure.caption)}"
        return f'<figure>\n<div class="panels">\n{drawings}\n</div>\n<figcaption>{caption}</figcaption>\n</figure>'

    def table(self, table: Table) -> str:
        number = next(self.tables)
        numeric = [_numeric(table, j) for j in range(len(table.head))]
        head = "".join(
            f'<th scope="col"{_class("num" if is_number else "")}>{_heading(text)}</th>'
            for text, is_number in zip(table.head, numeric, strict=True)
        )
        bodies = [_body(table.lines, "")] + ([_body(table.apart, "apart")] if table.apart else [])
        kind = "sortable" if table.sortable and len(table.lines) > 1 else ""
        caption = f'<p class="caption" id="table-{number}"><b>Table {number}.</b> {escape(table.caption)}</p>'
        box = f'<section class="box" tabindex="0" aria-labelledby="table-{number}">'
        inside = f"<table{_class(kind)}>\n<thead><tr>{head}</tr></thead>\n" + "\n".join(bodies) + "\n</table>"
        return f"{caption}\n{box}\n{inside}\n</section>"


def _heading(heading: str | Heading) -> str:
    if isinstance(heading, str):
        return escape(heading)
    return f"{escape(heading.text)}<small>{escape(heading.note)}</small>"


def _body(lines: Sequence[Line], kind: str) -> str:
    inside = "\n".join(
        "<tr>" + "".join(_cell(cell, "th" if j == 0 else "td") for j, cell in enumerate(line)) + "</tr>"
        for line in lines
    )
    return f"<tbody{_class(kind)}>\n{inside}\n</tbody>"


def _cell(cell: str | Cell | Number, tag: str) -> str:
    scope = ' scope="row"' if tag == "th" else ""
    if isinstance(cell, Number):
        mean, _, spread = cell.text.partition(" ± ")
        inside = escape(mean) + (f' <span class="pm">± {escape(spread)}</span>' if spread else "")
        inside = f"<strong>{inside}</strong>" if cell.best else inside
        note = f"<small>{escape(cell.note)}</small>" if cell.note else ""
        return f'<{tag}{scope} class="num" data-value="{cell.value!r}">{inside}{note}</{tag}>'
    cell = Cell(cell) if isinstance(cell, str) else cell
    inside = escape(cell.text).replace("+", "+<wbr>")  # where a long name may break
    inside = f"<strong>{inside}</strong>" if cell.strong else inside
    if cell.picture is not None:
        source = base64.b64encode(cell.picture.jpeg).decode()
        inside = f'<img src="data:image/jpeg;base64,{source}" alt="{escape(cell.picture.alt)}">{inside}'
    return f"<{tag}{scope}>{inside}</{tag}>"


def _numeric(table: Table, column: int) -> bool:
    return any(isinstance(line[column], Number) for line in [*table.lines, *table.apart])


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _id(section: PageSection) -> str:
    return "s-" + re.sub(r"[^a-z0-9]+", "-", section.title.lower()).strip("-")
