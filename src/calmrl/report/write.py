"""A page as files: `report.html`, `report.md` and the folder `figures`."""

from pathlib import Path

from calmrl._support.output import new_file
from calmrl.errors import InputError
from calmrl.report.blocks import Page
from calmrl.report.markdown import FOLDER, as_markdown, drawings
from calmrl.report.web import as_html


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
    files |= {target.parent / FOLDER / name: content for name, content in drawings(page).items()}
    taken = [path for path in files if path.exists()]
    if taken and not force:
        raise InputError(f"{taken[0]} exists; choose another name, or pass --force to replace it")
    for path, content in files.items():
        with new_file(path, force=force) as draft:
            draft.write_bytes(content)
    return list(files)


def import_drawing() -> None:
    """Import what pages and their drawings need, for a time when there is nothing else to do; it takes about a second."""
    import jinja2  # noqa: F401
    import matplotlib.backends.backend_svg
    import matplotlib.figure  # noqa: F401
