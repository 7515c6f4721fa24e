"""`compare`: all jobs of a comparison, and its directory.

`config.yaml`, `jobs/`, `results.json`, `tables/`, `report.html`, `train/` (configs of the best rows), `models/` (if kept).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calmrl._support.output import WRITTEN_BY, check_directory, check_free, new_file
from calmrl.config import CompareConfig, TrainConfig, dump, load
from calmrl.errors import InputError
from calmrl.metrics.measures import TidyRow
from calmrl.protocols import Progress, no_progress
from calmrl.report import Results, build_page, results_of, write_page
from calmrl.report.page import import_drawing
from calmrl.report.table_files import write_tables
from calmrl.training.methods import FEATURES, find_method
from calmrl.workflows.compare.collect import average, collect
from calmrl.workflows.compare.jobs import ExtraJobs, JobResult, run_jobs
from calmrl.workflows.compare.plan import NAME, Job, plan, training_config
from calmrl.workflows.train import train

CONFIGS, MODELS = "train", "models"  # folders of a comparison


@dataclass(frozen=True)
class BestRow:
    """The best method of a data set and setting, and the config that trains it on everything."""

    job: Job  # of the seed with the best validation score
    config: Path
    command: str


def best_rows(
    config: CompareConfig, results: Mapping[Job, JobResult], rows: Sequence[TidyRow], out: Path
) -> list[BestRow]:
    """Write the config of the best row of every data set and setting; "ideal" and swept values do not compete.

    Best is the highest mean R@1. Of its seeds, the one with the best validation score says which trial.
    """
    best = []
    real = [name for name in config.methods if not find_method(name).ideal]
    for place in dict.fromkeys(job[:2] for job in results):
        values = average(rows, place)
        means = {m: np.mean(list(v.values())) for m, v in values.items() if m in real}
        if not means:
            continue
        method = max(means, key=lambda name: means[name])
        jobs = [Job(*place, method, seed) for seed in config.seeds]
        job = max(jobs, key=lambda one: results[one].trials[results[one].chosen][config.metric])
        path = out / CONFIGS / f"{_file_name(job)}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        dump(on_everything(config.only(job.dataset), job, results[job]), path, force=True)
        command = shlex.join(["calmrl", "train", str(path), "--out", f"{out}-{_file_name(job)}"])
        best.append(BestRow(job, path, command))
    return best


def on_everything(part: CompareConfig, job: Job, result: JobResult) -> TrainConfig:
    """The chosen trial on all rows of the data, nothing hidden: a tenth validates, the others train."""
    values = _chosen(part, "", job, result).model_dump(mode="json")
    source = values["sources"][NAME]
    by = "id" if source["resplit"] is None else source["resplit"]["by"]
    source |= {"complete": False, "hide": None, "resplit": {"by": by, "val": 0.1, "test": 0.0}}
    return TrainConfig.model_validate(values)


def keep_models(
    config: CompareConfig, results: Mapping[Job, JobResult], best: Sequence[BestRow], out: Path
) -> list[Path]:
    """Train the best rows again as they were compared, same rows and same seed, and save them as `calmrl train` does."""
    folders = []
    for row in best:
        folder = out / MODELS / _file_name(row.job)
        if not (folder / "model").is_dir():
            check_free(folder, force=True)
            part = config.only(row.job.dataset)
            train(_chosen(part, row.job.setting, row.job, results[row.job]), folder)
        folders.append(folder)
    return folders


def _chosen(part: CompareConfig, setting: str, job: Job, result: JobResult) -> TrainConfig:
    """The training config of the chosen trial. The model standardises its features itself, as the comparison did before."""
    changes: dict[str, Any] = dict(result.trials[result.chosen]["changes"])
    form = changes.pop("standardize")
    if form is not None:
        changes[FEATURES] = form
    return training_config(part, setting, job.seed, changes)


def _file_name(job: Job) -> str:
    return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in (job.dataset, job.setting, job.method))


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: tidy rows, the sentences about them, remarks on the data, and all as the report reads it."""

    directory: Path
    rows: list[TidyRow]
    words: list[str]
    notes: list[str]
    results: Results
    best: list[BestRow]
    models: list[Path]  # of the best rows, where they were kept
    extra_jobs: dict[str, Any] = field(default_factory=dict)  # name of an extra job -> what it returned


def compare(
    config: CompareConfig | str | Path,
    out: str | Path,
    *,
    command: str = "",
    keep: Literal["best"] | None = None,
    extra_jobs: ExtraJobs | None = None,
    progress: Progress = no_progress,
) -> Comparison:
    """Compare methods on the same rows, with the same number of steps and trials, chosen on validation rows.

    Parameters
    ----------
    config: a config of kind compare: an object, a file, or the name of a shipped one.
    out: the directory to write. A comparison that was stopped continues there.
    command: what the report shows as the way to repeat it.
    keep: "best" trains the best row of every data set and setting once more and keeps its model, under `out/models`.
    extra_jobs: other work for the same processes, what it is -> a function that they can import, without arguments; it may
        write into `out`. `Comparison.extra_jobs` has what the functions return.
    progress: called as `progress(finished, total, text)` after every job.

    Examples
    --------
    >>> compare("demo", "demo-out").words  # doctest: +SKIP
    """
    if not isinstance(config, CompareConfig):
        loaded = load(str(config), kind="compare")
        assert isinstance(loaded, CompareConfig)
        config = loaded
    out = Path(out)
    check_directory(out)
    planned = plan(config)
    _prepare(config, out)
    results, others = run_jobs(config, out / "jobs", progress, planned.jobs, extra_jobs, import_drawing)
    content = collect(config, results, planned.notes, command)
    with new_file(out / "results.json", force=True) as draft:
        draft.write_text(json.dumps(content, indent=1), encoding="utf-8")
    write_tables(content, out / "tables")
    read = results_of({out / "results.json": content})
    write_page(build_page(read), out / "report.html", force=True)
    best = best_rows(config, results, content["rows"], out)
    models = keep_models(config, results, best, out) if keep == "best" else []
    meta = content["meta"]
    return Comparison(out, content["rows"], meta["words"], meta["notes"], read, best, models, others)


def _prepare(config: CompareConfig, out: Path) -> None:
    """Make the directory, or find a comparison in it to continue."""
    path = out / "config.yaml"
    if path.is_file() and path.read_text(encoding="utf-8").startswith(WRITTEN_BY):
        load(path, kind="compare")  # a directory of another command is an error here
    elif out.exists() and any(out.iterdir()):
        raise InputError(f"{out} exists and holds something else; choose another `out`")
    out.mkdir(parents=True, exist_ok=True)
    dump(config, path, force=True)
