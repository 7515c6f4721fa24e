"""`calmrl serve`: a page and a JSON interface to search and browse a collection."""

from pathlib import Path
from typing import Annotated

import typer

from calmrl._support.places import check_index
from calmrl.cli.printing import note

EXAMPLE = """Example:
  calmrl serve index
  calmrl serve index --port 8080 --allow-add"""


def run(
    index: Annotated[Path, typer.Argument(help="What calmrl index wrote.")],
    host: Annotated[str, typer.Option(help="The address to listen on; by default only this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8000,
    allow_add: Annotated[bool, typer.Option("--allow-add", help="Let clients add and remove items.")] = False,
) -> None:
    """Show a collection as a page, and answer programs.

    In JSON, until it is stopped.
    """
    check_index(index)
    from calmrl.search import Index
    from calmrl.server import run_server

    run_server(Index.open(index), host=host, port=port, allow_add=allow_add, report=note)
