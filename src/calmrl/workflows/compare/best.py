"""From the best row of a comparison to a model: its config, its training on everything, and the model of the row itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.output import check_free
from calmrl.config import CompareConfig, TrainConfig, dump
from calmrl.metrics.measures import TidyRow
from calmrl.training.methods import FEATURES
from calmrl.workflows.compare.job import JobResult
from calmrl.workflows.compare.plan import Job
from calmrl.workflows.compare.rows import NAME, method_of, training_config
from calmrl.workflows.compare.words import average
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
    for place in dict.fromkeys(job[:2] for job in results):
        values = average(rows, place)
        means = {m: np.mean(list(v.values())) for m, v in values.items() if " " not in m and not method_of(m).ideal}
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
