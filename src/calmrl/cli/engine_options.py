"""The options that say where the work is done, the same in every command that can be spread over machines."""

from __future__ import annotations

from typing import Annotated

import typer

EngineOption = Annotated[
    str,
    typer.Option("--engine", help="Where the work is done: local, or ray for a Ray cluster. The result is the same."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", help="With --engine ray: the head node, such as 10.0.0.1:6379. [default: this machine's]"
    ),
]
