"""`calmrl mcp`: a collection for assistants and other programs that speak the Model Context Protocol."""

from pathlib import Path
from typing import Annotated

import typer

from calmrl._support.places import check_index

EXAMPLE = """Example:
  calmrl mcp photos.index"""


def run(index: Annotated[Path, typer.Argument(help="What calmrl index wrote.")]) -> None:
    """Let an assistant search a collection (MCP).

    Tools of the Model Context Protocol, over stdin and stdout, that only read.
    """
    check_index(index)
    from calmrl.search import Index
    from calmrl.server.mcp import build_tools

    build_tools(Index.open(index)).run()
