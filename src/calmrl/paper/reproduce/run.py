"""`reproduce`: a table or figure of the paper, our numbers beside the published ones.

`Reproduction` trains and measures what tables ask for. What is finished is kept in the output folder and used again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl._support.output import new_file
from calmrl._support.parsing import read_json_object
from calmrl._support.text import escaped, pipes
from calmrl.config import TrainConfig, dump
from calmrl.config.schema.train import SourceSection
from calmrl.data.features.feature_set import open_features
from calmrl.data.media.public_collections import COLLECTIONS, PublicCollection
from calmrl.errors import InputError
from calmrl.metrics.measures import Measurement, row
from calmrl.metrics.model_rows import picture, retrieval_rows
from calmrl.models.saved import load as load_model
from calmrl.paper.reproduce.by_name import by_name_rows
from calmrl.paper.reproduce.needs import CLASSIFIED, Need, check, features_of_others, needs_of, others_without_features
from calmrl.paper.reproduce.tables import (
    CLASSIFICATION,
    CONTINUED,
    COUNTS,
    IMAGEBIND,
    PAPER_TABLES,
    RUNS,
    Cell,
    PaperTable,
    Run,
    Value,
    config_of,
    media_source,
    run_of,
)
from calmrl.protocols import Progress, no_progress
from calmrl.report.figures import Curve, curves, scatter, standalone
from calmrl.report.results import PointMap, skipped_sentence
from calmrl.report.style import style_of
from calmrl.training.checkpoints import read_records
from calmrl.training.validate import encode_all
from calmrl.workflows.evaluate import evaluate
from calmrl.workflows.from_config import open_test_media
from calmrl.workflows.train import same_config, train


@dataclass
class ReproductionRun:
    """Trains and measures on the data in `root`; `out` gets `configs/`, and `runs/` with a folder per run."""

    root: Path
    out: Path
    device: str = "cpu"
    changes: Callable[[Run], Sequence[str]] = lambda run: ()  # key=value, of the config of a run
    progress: Progress = no_progress
    report: Callable[[str], None] = lambda text: None
    skipped: dict[str, dict[str, int]] = field(default_factory=dict)  # by collection: test media that are not there
    _rows: dict[tuple[str, str], list[Any]] = field(default_factory=dict)

    def folder(self, run: str) -> Path:
        """The directory of a run."""
        return self.out / "runs" / run

    def config(self, run: str) -> TrainConfig:
        """The config of a run."""
        return config_of(RUNS[run], self.root, self.changes(RUNS[run]))

    def write_config(self, run: str) -> Path:
        """The config of a run as a file for `calmrl train`."""
        path = self.out / "configs" / f"{run}.yaml"
        dump(self.config(run), path, force=True)
        return path

    def finished(self, run: str) -> bool:
        """Whether the run is trained."""
        return (self.folder(run) / "model" / "model.json").is_file()

    def trained(self, run: str) -> Path:
        """The folder of a run, trained now unless it was before; one that was stopped resumes."""
        folder, config = self.folder(run), self.config(run)
        if self.finished(run):
            same_config(config, folder / "config.yaml")
            return folder

        def show(done: int, total: int, text: str) -> None:
            self.progress(done, total, f"{run}: {text}")

        resume = (folder / "config.yaml").is_file()

        def tell(text: str) -> None:
            self.report(f"{run}: {text}")

        train(config, folder, resume=resume, cpu=self.device == "cpu", progress=show, report=tell)
        return folder

    def value(self, wanted: Value) -> Measurement | None:
        """A measurement; None if it was not possible."""
        rows = self._rows_of(wanted.producer, wanted.collection)
        same = [one for one in rows if (one["task"], one["metric"]) == (wanted.task, wanted.metric)]
        return same[0] if same else None

    def _rows_of(self, producer: str, collection: str) -> list[Any]:
        key = (producer, collection)
        if key not in self._rows:
            self._rows[key] = self._measured(producer, collection)
        return self._rows[key]

    def _measured(self, producer: str, collection: str) -> list[Any]:
        if producer == COUNTS:
            return count_rows(collection, self.root)
        if producer not in RUNS:
            return self._of_others(producer, collection)
        if not collection:
            return loss_rows(self.trained(producer))
        if RUNS[producer].config == CLASSIFICATION:
            by_name = partial(by_name_rows, self.root / IMAGEBIND / collection)
            return self._kept(producer, collection, lambda folder: {"rows": by_name(load_model(folder))})["rows"]
        content = self._kept(producer, collection, partial(self._evaluated, collection))
        described = content["meta"]["datasets"][collection]
        self.skipped[collection] = described.get("left_out", {})
        return list(content["rows"])

    def _evaluated(self, collection: str, folder: Path) -> dict[str, Any]:
        sources = {collection: SourceSection.model_validate(media_source(collection))}
        return evaluate(folder, sources=sources, device=self.device).as_dict()

    def _kept(self, run: str, name: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Results of a run by name, from their file if it is there."""
        folder = self.trained(run)
        path = folder / "results" / f"{name}.json"
        if not path.is_file():
            self.progress(0, 0, f"{run}: measuring on {name}")
            content = make(folder)
            with new_file(path) as draft:
                draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return read_json_object(path, "delete it, and it is measured again")

    def _of_others(self, model: str, collection: str) -> list[Any]:
        """Retrieval and classes with features of a model of others as they are; nothing if they are not there."""
        path = features_of_others(self.root, model, collection)
        if not path.is_dir():
            return []
        if collection in CLASSIFIED:
            return list(by_name_rows(path))
        data = open_features(path)
        test = np.ones(len(data), dtype=bool) if data.split is None else data.split == "test"
        present = torch.from_numpy(np.ascontiguousarray(data.present[test]))
        z = {name: torch.nan_to_num(torch.as_tensor(np.asarray(data.z[name][test]))) for name in data.names}
        return list(retrieval_rows(z, present))

    def map_of(self, run: str, collection: str) -> dict[str, Any]:
        """t-SNE of the test vectors of a collection that lack nothing of what its items have."""
        return self._kept(run, f"{collection}-map", partial(self._map, collection))

    def _map(self, collection: str, folder: Path) -> dict[str, Any]:
        model = load_model(folder)
        sources = {collection: SourceSection.model_validate(media_source(collection))}
        config = self.config(folder.name).model_copy(update={"sources": sources})
        z, present = encode_all(model.model.to(self.device), [open_test_media(config)[collection]], self.device)
        there = present.any(0)
        complete = present[:, there].all(1)
        return picture({name: z[name][complete] for j, name in enumerate(z) if there[j]})


def count_rows(collection: str, root: Path) -> list[Measurement]:
    """Items, and their texts, of each part of a collection of which a media file is there."""
    media = COLLECTIONS[collection]().media
    counts: dict[str, list[int]] = {}
    for _, columns in PublicCollection(collection, root / collection).read().rows:
        if any(Path(str(columns[name])).is_file() for name in media if columns.get(name)):
            counts.setdefault(str(columns.get("split")), []).append(len(columns["text"]))
    rows = []
    for part, texts in counts.items():
        rows += [row(part, "items", len(texts), len(texts)), row(part, "texts", sum(texts), len(texts))]
    return rows


def loss_rows(folder: Path) -> list[Measurement]:
    """The first and last loss of the last stage of a run."""
    curve = loss_curve(folder)
    ends = (("first", curve[0]), ("last", curve[-1])) if curve else ()
    return [row("loss", name, loss, step) for name, (step, loss) in ends]


def loss_curve(folder: Path) -> list[tuple[int, float]]:
    """(step, loss) of the records of the last stage."""
    records = read_records(folder / "metrics.jsonl", "train")
    last = records[-1]["stage"] if records else ""
    return [(one["step"], one["loss"]) for one in records if one["stage"] == last and one["loss"] is not None]


NOTHING = "–"
TOGETHER = 6  # numbers of a row in one small table; names of data sets are long
PRINTED, UNPRINTED = ("paper", "ours", "diff."), ("ours",)


@dataclass(frozen=True)
class Part:
    """Some columns of a table: lines of a row's name and its numbers."""

    columns: list[str]
    kinds: tuple[
        str, ...
    ]  # of every column: the paper's number, ours and the difference; ours alone if none is printed
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
    packed: list[list[str]] = []
    for _, group in groupby(columns, lambda column: column.rpartition(" ")[0] or column):
        some = list(group)
        if packed and len(packed[-1]) + len(some) <= most:
            packed[-1] += some
        else:
            packed.append(some)
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
    for method in CONTINUED:
        curve = loss_curve(experiments.folder(run_of(method)))
        style = style_of(method.removesuffix("↑").lower())
        lines.append(Curve(method, [step for step, _ in curve], [loss for _, loss in curve], style))
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
        cell = {"row": self.cell.row, "column": self.cell.column, "published": self.cell.published}
        return {**cell, "ours": self.ours, "difference": self.difference, "n": self.n, "note": self.note}


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` gives."""

    table: PaperTable
    cells: list[Measured]  # empty if it was only checked
    needs: list[Need]  # on disk
    runs: dict[str, bool]  # run -> whether it is finished
    notes: list[str] = field(default_factory=list)  # what must be known to compare
    files: list[Path] = field(default_factory=list)  # what was written, the Markdown file first

    def as_dict(self) -> dict[str, Any]:
        """The content of the JSON file."""
        cells = [cell.as_dict() for cell in self.cells]
        about = {"name": self.table.name, "title": self.table.title}
        return {**about, "cells": cells, "runs": list(self.runs), "notes": self.notes}


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
        stopped resumes.
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
        raise InputError("name the folder of the data with `root`, or pass `smoke=True` to try it on generated data")
    if smoke:
        from calmrl.paper.reproduce.smoke import smoke_changes, write_smoke_data

        if root is not None:
            raise InputError("`smoke=True` makes its own data; leave out `root`")
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
    lost = skipped_sentence(experiments.skipped)
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
    """Write table and drawings, each atomically."""
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
    return "cuda" if torch.cuda.is_available() else "cpu"
