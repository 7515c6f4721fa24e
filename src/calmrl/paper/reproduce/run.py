"""`reproduce`: a table or figure of the paper, our numbers beside the published ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calmrl._support.output import new_file
from calmrl._support.text import escaped, pipes
from calmrl.errors import InputError
from calmrl.paper.reproduce.needs import Need, check, needs_of, others_without_features
from calmrl.paper.reproduce.registry import PAPER_TABLES
from calmrl.paper.reproduce.reproduction import ReproductionRun, loss_curve
from calmrl.paper.reproduce.tables import CONTINUED, RUNS, Cell, PaperTable, run_of
from calmrl.protocols import Progress, no_progress
from calmrl.report.figures import Curve, curves, scatter, standalone
from calmrl.report.results import PointMap, skipped_sentence
from calmrl.report.style import style_of

NOTHING = "–"
TOGETHER = 6  # numbers of a row in one small table; names of data sets are long
PRINTED, UNPRINTED = ("paper", "ours", "diff."), ("ours",)


@dataclass(frozen=True)
class Part:
    """Some columns of a table.

    Attributes
    ----------
    columns : list of str
    kinds : tuple of str
        What every column has: the paper's number, ours and the difference; ours alone if the paper prints no number.
    lines : list of (str, list of str)
        A row's name, and its numbers.
    """

    columns: list[str]
    kinds: tuple[str, ...]
    lines: list[tuple[str, list[str]]]


def parts_of(made: Reproduction) -> list[Part]:
    """The table in pieces of few columns; columns of one data set stay together."""
    columns = list(dict.fromkeys(measured.cell.column for measured in made.cells))
    rows = list(dict.fromkeys(measured.cell.row for measured in made.cells))
    cells = {(measured.cell.row, measured.cell.column): measured for measured in made.cells}
    kinds = PRINTED if any(measured.cell.published is not None for measured in made.cells) else UNPRINTED
    parts = []
    for some in _grouped(columns, TOGETHER // len(kinds)):
        shown = {row: [_shown(cells.get((row, column)), made.table.decimals) for column in some] for row in rows}
        lines = [(row, [number[kind] for number in numbers for kind in kinds]) for row, numbers in shown.items()]
        parts.append(Part(some, kinds, lines))
    return parts


def to_markdown(made: Reproduction) -> str:
    """The table as a Markdown page."""
    name = made.table.name
    number = name.removeprefix("table").removeprefix("figure")
    kind = "Table" if name.startswith("table") else "Figure"
    lines = [f"# {kind} {number} of the paper: {escaped(made.table.title)}", ""]
    for part in parts_of(made):
        heads = [f"{escaped(column)}<br>{kind}" for column in part.columns for kind in part.kinds]
        cells = [[escaped(row), *numbers] for row, numbers in part.lines]
        lines += [pipes(["", *heads], cells, [False, *[True] * len(heads)]), ""]
    lines += [f"- {escaped(note)}" for note in made.notes]
    return "\n".join(lines) + "\n"


def _grouped(columns: Sequence[str], most: int) -> list[list[str]]:
    """Columns of one data set stay together, and with others up to `most`."""
    groups: list[list[str]] = []
    for column in columns:
        dataset = column.rpartition(" ")[0]
        if groups and dataset and groups[-1][-1].rpartition(" ")[0] == dataset:
            groups[-1].append(column)
        else:
            groups.append([column])
    packed: list[list[str]] = []
    for group in groups:
        if packed and len(packed[-1]) + len(group) <= most:
            packed[-1] += group
        else:
            packed.append(list(group))
    return packed


def _shown(measured: Measured | None, decimals: int) -> dict[str, str]:
    """Kind of number -> its text."""
    if measured is None:
        return dict.fromkeys(PRINTED, "")
    difference = measured.difference
    gap = NOTHING if difference is None else f"{difference:+,.{decimals}f}".replace("-", "−")
    return {"paper": _number(measured.cell.published, decimals), "ours": _number(measured.ours, decimals), "diff.": gap}


def _number(value: float | None, decimals: int) -> str:
    return NOTHING if value is None else f"{value:,.{decimals}f}"


def drawings(table: PaperTable, experiments: ReproductionRun) -> dict[str, str]:
    """File name -> SVG; empty for tables and for figures whose numbers are all in the table."""
    if table.name == "figure6":
        return {f"figure6-{run_of(row)}.svg": _map(row, experiments) for row in CONTINUED}
    if table.name == "figure7":
        return {"figure7.svg": _losses(experiments)}
    return {}


def _map(row: str, experiments: ReproductionRun) -> str:
    cloud = PointMap.model_validate(experiments.map_of(run_of(row), "msrvtt"))
    alt = f"t-SNE map of the test items of MSR-VTT by {row}"
    return standalone(scatter(run_of(row), alt, cloud, title=row))


def _losses(experiments: ReproductionRun) -> str:
    lines = []
    for row in CONTINUED:
        curve = loss_curve(experiments.folder(run_of(row)))
        style = style_of(row.removesuffix("↑").lower())
        lines.append(Curve(row, [step for step, _ in curve], [loss for _, loss in curve], style))
    return standalone(curves("figure7", "Loss over steps for five methods", lines, x="step", y="loss"))


SMOKE = "Smoke test: tiny random weights and generated media; only the published numbers mean something."
FEATURES_NEEDED = "features needed: see docs/how-to/reproduce.md"


@dataclass(frozen=True)
class Measured:
    """A cell with our number, None where there is none, on how many items, and why there is none."""

    cell: Cell
    ours: float | None
    n: int | None = None
    note: str = ""

    @property
    def difference(self) -> float | None:
        """Ours minus the published number."""
        if self.ours is None or self.cell.published is None:
            return None
        return self.ours - self.cell.published

    def as_dict(self) -> dict[str, Any]:
        """The cell as the JSON file has it."""
        return {
            "row": self.cell.row,
            "column": self.cell.column,
            "published": self.cell.published,
            "ours": self.ours,
            "difference": self.difference,
            "n": self.n,
            "note": self.note,
        }


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` gives.

    Attributes
    ----------
    table : PaperTable
    cells : list of Measured
        Empty if it was only checked.
    needs : list of Need
        What the table needs on disk.
    runs : dict
        Run -> whether it is finished.
    notes : list of str
        What must be known to compare.
    files : list of Path
        What was written, the Markdown file first.
    """

    table: PaperTable
    cells: list[Measured]
    needs: list[Need]
    runs: dict[str, bool]
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return {
            "name": self.table.name,
            "title": self.table.title,
            "cells": [cell.as_dict() for cell in self.cells],
            "runs": list(self.runs),
            "notes": self.notes,
        }


def reproduce(
    name: str,
    root: str | Path | None = None,
    out: str | Path = "reproduced",
    *,
    smoke: bool = False,
    check_only: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Reproduction:
    """Train and measure what a table or figure of the paper shows, and put our numbers beside the published ones.

    Parameters
    ----------
    name : str
        A name of `calmrl ls tables`, such as "table1".
    root : str or Path, optional
        The folder of collections, weights and features; with `smoke` not needed.
    out : str or Path
        Gets NAME.md, NAME.json, `configs/` and `runs/`. Runs that are finished there are used again, and one that was
        stopped goes on.
    smoke : bool
        The same on tiny generated data with tiny random weights.
    check_only : bool
        Look at what is there and write the configs, but train nothing.
    device : str
        "auto" takes a GPU where there is one, "cpu" does not.
    progress : callable, optional
        Called with (done so far, of how many, what is being done).
    report : callable
        Gets sentences for people.

    Returns
    -------
    Reproduction
    """
    table, out = PAPER_TABLES[name](), Path(out).absolute()
    if root is None and not smoke:
        raise InputError("name the folder of the data with --root, or pass --smoke to try it on generated data")
    if smoke:
        from calmrl.paper.reproduce.smoke import smoke_changes, write_smoke_data

        if root is not None:
            raise InputError("--smoke makes its own data; leave out --root")
        write_smoke_data(out / "data")
    experiments = ReproductionRun(
        out / "data" if smoke else Path(str(root)).absolute(),
        out,
        device=_device(device),
        changes=smoke_changes if smoke else lambda run: (),
        progress=progress or no_progress,
        report=report,
    )
    needs = needs_of(table, experiments.root)
    check_now = not check_only or all(need.there for need in needs)
    if check_now:
        check(table, needs)
        for run in (producer for producer in table.producers if producer in RUNS):
            experiments.write_config(run)
    runs = {producer: experiments.finished(producer) for producer in table.producers if producer in RUNS}
    if check_only:
        return Reproduction(table, [], needs, runs)
    cells = measure(table, experiments)
    lost = skipped_sentence(experiments.left_out)
    notes = [*([SMOKE] if smoke else []), *table.notes, *([lost] if lost else [])]
    absent = others_without_features(table, experiments.root)
    notes += [f"{', '.join(absent)}: {FEATURES_NEEDED}"] if absent else []
    made = Reproduction(table, cells, needs, dict.fromkeys(runs, True), notes)
    return _written(made, experiments)


def measure(table: PaperTable, experiments: ReproductionRun) -> list[Measured]:
    """All cells; what models of others lack has a note instead of a number."""
    cells = []
    for cell in table.cells:
        rows = [experiments.value(value) for value in cell.values]
        values = [row["value"] for row in rows if row is not None]
        if len(values) < len(rows):
            others = cell.values[0].producer not in RUNS
            cells.append(Measured(cell, None, note=FEATURES_NEEDED if others else "these test rows do not allow it"))
        else:
            counts = [row["n"] for row in rows if row is not None]
            cells.append(Measured(cell, sum(values) / len(values), counts[0] if len(counts) == 1 else None))
    return cells


def _written(made: Reproduction, experiments: ReproductionRun) -> Reproduction:
    """Write table and drawings, each whole or not at all."""
    name = made.table.name
    contents = {f"{name}.md": to_markdown(made), f"{name}.json": json.dumps(made.as_dict(), indent=1)}
    contents |= drawings(made.table, experiments)
    for file, text in contents.items():
        with new_file(experiments.out / file, force=True) as draft:
            draft.write_text(text, encoding="utf-8")
        made.files.append(experiments.out / file)
    return made


def _device(name: str) -> str:
    if name == "cpu":
        return name
    if name != "auto":
        raise InputError(f'device is "auto" or "cpu"; got {name!r}; choose a GPU with CUDA_VISIBLE_DEVICES')
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
