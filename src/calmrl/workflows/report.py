"""`report`: results of one or several runs as a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from calmrl._support.output import check_writable
from calmrl.errors import InputError
from calmrl.report import Results, build_page, read_results, write_page


@dataclass(frozen=True)
class WrittenReport:
    """What `report` wrote: the page, the Markdown file and the figures, and the results that they show."""

    files: list[Path]
    results: Results


def report(folders: Sequence[str | Path], out: str | Path | None = None, *, force: bool = False) -> WrittenReport:
    """Write results as a page: report.html, the same as report.md, and its figures.

    Parameters
    ----------
    folders: directories that hold results.json, or such files.
    out: the HTML file to write; by default report.html in a single directory.
    force: replace files that are there.

    Examples
    --------
    >>> report(["run-1", "run-2"], "both.html").files[0]  # doctest: +SKIP
    """
    if out is None and len(folders) > 1:
        raise InputError(f"{len(folders)} directories make one report; say where to write it: `out='FILE.html'`")
    if out is not None:
        check_writable(out)
    results = read_results(folders)
    target = results.sources[0].folder / "report.html" if out is None else out
    return WrittenReport(write_page(build_page(results), target, force=force), results)
