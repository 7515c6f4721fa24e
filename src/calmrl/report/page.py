"""A page of results: composed from its sections, and written as one HTML file and as Markdown with figures beside it."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from calmrl._support.output import new_file
from calmrl._support.parsing import visible
from calmrl._support.text import MEDIA, Picture, Table, escaped, listed, to_markdown
from calmrl.errors import InputError
from calmrl.metrics.registry import describe, names_of
from calmrl.report.blocks import Block, Code, Figure, Page, PageSection, Text
from calmrl.report.estimates import better, headline, matrix, several, verdict
from calmrl.report.figures import inline, standalone
from calmrl.report.results import ResultRow, Results
from calmrl.report.sections import comparison, completion, data


def build_page(results: Results, title: str = "") -> Page:
    """The report. Only what there is data for is shown.

    Examples
    --------
    >>> page = build_page(read_results(["run-1", "run-2"]))  # doctest: +SKIP
    """
    parts = {
        "Read this first": _notes(results),
        "Comparison": comparison.comparison(results) if several(results) else [],
        "Retrieval": comparison.retrieval(results),
        "Classification": comparison.classification(results),
        "Missing rates": comparison.rates(results),
        "Complete rows": comparison.complete_rows(results),
        "Imputed vectors": completion.imputation(results),
        "Predicted uncertainty": completion.coverage(results),
        "Anchor shift": completion.shift(results),
        "Maps": comparison.maps(results),
        "Nearest neighbours": data.neighbours(results),
        "Training": comparison.training(results),
        "Other measurements": _other(results),
        "Data and missing patterns": data.data(results),
        "Methods": data.methods(results),
        "Repeat it": data.repeat(results),
    }
    sections = [PageSection(name, _captioned(blocks, results.left_out)) for name, blocks in parts.items() if blocks]
    first = _captioned([comparison.main_table(results)], results.left_out)
    return Page(title or _title(results), verdict(results), first, sections)


def _captioned(blocks: Sequence[Block], sentence: str) -> list[Block]:
    """The same blocks, with the sentence below every table."""
    if not sentence:
        return list(blocks)
    return [
        replace(block, caption=f"{block.caption} {sentence}") if isinstance(block, Table) else block for block in blocks
    ]


def _notes(results: Results) -> list[Block]:
    """Remarks on the data and on what could not be measured."""
    return [Text(note) for source in results.sources for note in source.meta.notes]


def _other(results: Results) -> list[Block]:
    """Whatever no other section shows, a table per setting and metric."""
    blocks: list[Block] = []
    first = headline(results.rows)
    rows = [row for row in results.rows if not _in_sections(row) and (row.task, row.metric) != first]
    for place, here in results.by_place(rows):
        for metric in dict.fromkeys(row.metric for row in here):
            at = [row for row in here if row.metric == metric]
            caption = f"{place}: {describe(metric).axis}{better(metric)}."
            blocks.append(matrix(results, at, lambda row: row.task, caption))
    return blocks


def _in_sections(row: ResultRow) -> bool:
    if row.metric in names_of("retrieval"):
        return row.task == "average" or "->" in row.task or row.task.startswith("mixed-pool")
    if row.metric in names_of("classification"):
        return row.task.startswith("classification")
    return row.metric in completion.SHOWN


def _title(results: Results) -> str:
    datasets = list(dict.fromkeys(row.dataset for row in results.rows))
    methods = list(dict.fromkeys(row.method for row in results.rows))
    what = f"{len(methods)} methods" if len(methods) > 1 else f"Evaluation of {methods[0]}"
    missing = " with missing modalities" if results.settings else ""
    return f"{what} on {listed(datasets)}{missing}"


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
