"""`calmrl report`: the page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calmrl.cli.speaking import data, note

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
    """Write results as a page: report.html, the same as report.md, and its figures."""
    from calmrl.errors import InputError
    from calmrl.report import build_page, read_results, write_page

    if out is None and len(folders) > 1:
        raise InputError(f"{len(folders)} directories make one report; say where with --out FILE.html")
    results = read_results(folders)
    if out is None:
        out = (folders[0] if folders[0].is_dir() else folders[0].parent) / "report.html"
    written = write_page(build_page(results), out, force=force)
    note(f"{len(results.rows)} rows of {len(results.sources)} file(s); wrote {written[0]}, {written[1].name} and")
    note(f"{len(written) - 2} files in {out.parent / 'figures'}")
    data(str(out))
