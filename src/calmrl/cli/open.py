"""`calmrl open`: a folder of files in the browser, indexed on the way."""

from typing import Annotated

import typer

from calmrl.cli.printing import Progress, note
from calmrl.cli.shared_options import IndexOption, OcrOption, check_source

EXAMPLE = """Example:
  calmrl open photos
  calmrl open photos --index photos.index --no-browser
  calmrl open items.csv --port 8080"""


def run(
    source: Annotated[
        str, typer.Argument(help="A folder of files; or a manifest, features, a bundled data set, an index.")
    ],
    index: IndexOption = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port to listen on. [default: 8000, or a free one]")
    ] = None,
    ocr: OcrOption = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Search a folder in the browser, by words and by files.

    Indexes it, or brings its index up to date, and shows the page. Pictures, videos, sounds and texts are
    found by words and by each other, files by their names too. The index is kept in the user's cache unless --index
    says where; nothing is written beside the files. The second time takes seconds.
    """
    check_source(source)
    from calmrl.server import run_server
    from calmrl.server.run import check_installed, show
    from calmrl.workflows.index import open_index

    check_installed()
    with Progress() as progress:
        opened = open_index(source, index, ocr=ocr, progress=progress, report=note)
    note(opened.done)
    run_server(opened.index, port=port, report=note, started=show if browser else None)
