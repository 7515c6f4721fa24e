"""`calmrl report`: the page of results."""

from pathlib import Path
from typing import Annotated

import typer

from calmrl._support.text import plural
from calmrl.cli.printing import data, note

EXAMPLE = """Example:
  calmrl report demo-out --force
  calmrl report run-1 run-2 --out both.html"""


def run(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Directories that hold results.json.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file to write. [default: report.html in a single DIR]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write results as a page with figures.

    report.html, the same as report.md, and the figures.
    """
    from calmrl.workflows import report

    written = report(folders, out, force=force)
    page, text, *figures = written.files
    rows = f"{plural(len(written.results.rows), 'row')} of {plural(len(folders), 'file')}"
    note(f"{rows}; wrote {page}, {text.name} and")
    note(f"{plural(len(figures), 'file')} in {page.parent / 'figures'}")
    data(str(page))
