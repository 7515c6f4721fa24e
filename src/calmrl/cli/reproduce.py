"""`calmrl reproduce`: the tables and figures of the paper, our numbers beside the published ones."""

from __future__ import annotations

import textwrap
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calmrl._support.text import Table, to_terminal
from calmrl.cli.printing import Progress, as_json, data, error, note, stderr_console
from calmrl.cli.shared_options import table_names

if TYPE_CHECKING:
    from calmrl.paper.reproduce.run import Part, Reproduction


class Device(str, Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(help="table1, figure3, ...; without it they are listed.", autocompletion=table_names),
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="The folder of collections, weights and features.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="The folder for runs and tables; what is finished in it is used again.")
    ] = Path("reproduced"),
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Try all of it on tiny generated data with tiny random weights.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say what is there and what would run, and write the configs; no training.")
    ] = False,
    device: Annotated[Device, typer.Option("--device", help="auto: a GPU where there is one.")] = Device.auto,
    json: Annotated[bool, typer.Option("--json", help="Print the content of the JSON file instead of tables.")] = False,
) -> None:
    """Reproduce a table or figure of the paper.

    Trains, measures, and compares with the published numbers.

    Example:
      calmrl reproduce
      calmrl reproduce table4 --smoke --out tried
      calmrl reproduce table1 --root DATA --check
      calmrl reproduce table1 --root DATA --out reproduced
    """
    if table is None:
        from calmrl.cli.info import ls

        ls("tables", json)
        return
    from calmrl.paper.reproduce.run import reproduce
    from calmrl.training.plan import Interrupted

    with Progress() as bar:
        try:
            made = reproduce(
                table, root, out, smoke=smoke, check_only=check, device=device.value, progress=bar, report=_quiet
            )
        except Interrupted as stopped:
            error(str(stopped).partition(";")[0] + "; the same command continues from there")
            raise typer.Exit(1) from None
    if check:
        _show_check(made)
        return
    if json:
        as_json(made.as_dict())
    else:
        _show(made)
    note("\nthe numbers are in:")
    for file in made.files:
        (note if json else data)(str(file))


def _quiet(text: str) -> None:
    """Sentences of single trainings would hide the table; each run has them in its own folder."""


def _show(made: Reproduction) -> None:
    from calmrl.paper.reproduce.run import parts_of

    note(f"{made.table.name}: {made.table.title}\n")
    for part in parts_of(made):
        stderr_console().print(to_terminal(_table(part)))
        note("")
    for sentence in made.notes:
        note(textwrap.fill(sentence, 80))


def _table(part: Part) -> Table:
    """One narrow column per number, headed by data set, direction and kind of number, where there are several."""
    heads, above = [], ""
    for column in part.columns:
        dataset, _, rest = column.rpartition(" ")
        heads += [
            ["" if dataset == above else dataset, rest, part.kinds[0]],
            *(["", "", kind] for kind in part.kinds[1:]),
        ]
        above = dataset
    used = [level for level in range(3) if any(head[level] for head in heads)]
    names = ["\n".join(head[level] for level in used) for head in heads]
    return Table("", ["", *names], [[row, *numbers] for row, numbers in part.lines])


def _show_check(made: Reproduction) -> None:
    """What is there, what is not, and which runs are left; exit code 2 if something is missing."""
    for need in made.needs:
        note(textwrap.fill(str(need), 80, subsequent_indent=" " * 9))
    for name, finished in made.runs.items():
        data(f"{'finished' if finished else 'to train'}  {name}")
    if not all(need.there for need in made.needs):
        error(f"{made.table.name} needs what is missing above")
        raise typer.Exit(2)
