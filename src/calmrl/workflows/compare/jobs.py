"""The jobs of a comparison: a method in a setting with a seed, its trials, the choice and the measures, over processes."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from calmrl._support.engine import one_thread, worker_pool
from calmrl._support.filesystem import remove_leftovers
from calmrl._support.output import new_file
from calmrl._support.parsing import parsing
from calmrl._support.text import plural
from calmrl.config import CompareConfig
from calmrl.config.schema.train import ModelSection, TrainConfig
from calmrl.data.features.feature_set import relevance_of
from calmrl.data.loaders.feature_rows import Axes, pattern_counts, principal_axes
from calmrl.errors import InputError, JobError
from calmrl.metrics.measures import Measurement
from calmrl.metrics.model_rows import LabelledRows, Vectors, measure_rows, picture
from calmrl.models.fitted import AlignedModel
from calmrl.models.heads import UNIT_ROWS
from calmrl.protocols import Progress, no_progress
from calmrl.training.loop import Trainer
from calmrl.training.methods import Changes, find_method
from calmrl.training.step import Step
from calmrl.training.validate import encode_all, retrieval_scores
from calmrl.workflows.compare.plan import (
    ComparedRows,
    Job,
    jobs_of,
    on_kernel_features,
    open_rows,
    standardized,
    training_config,
    trials_of,
)
from calmrl.workflows.evaluate import nearest_examples
from calmrl.workflows.from_config import build_step, build_trainer, start_model

RUNGS = (0.25, 0.5)  # shares of the steps after which the better half of the trials continues


@dataclass
class Trial:
    """One trial: what it changes, its rows, and its training as far as it has come."""

    changes: Changes
    rows: ComparedRows
    step: Step
    trainer: Trainer
    metric: str
    records: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def of(config: TrainConfig, changes: Changes, rows: ComparedRows, model: Any) -> Trial:
        """A trial before its first step, from the model that it starts from."""
        records: list[dict[str, Any]] = []
        step = build_step(config, rows.data, model)
        trainer = build_trainer(config, rows.data, step, None, listen=records.append, latent_scores=False)
        return Trial(changes, rows, step, trainer, config.validation.metric, records)

    @property
    def steps(self) -> int:
        """Made so far."""
        return self.trainer.position.step

    def score(self) -> float:
        """The best validation score so far; of a model without steps, its own."""
        if self.trainer.position.best is None:
            z, present = encode_all(self.step.model, self.rows.data.validation)
            return retrieval_scores(z, present, self.trainer.relevant)[self.metric]
        return self.trainer.position.best

    def curve(self) -> list[dict[str, float]]:
        """Loss and validation score by step."""
        names = {"step": "step", "loss": "loss", self.metric: "val"}
        return [
            {names[key]: value for key, value in record.items() if key in names}
            for record in self.records
            if record["kind"] in ("train", "validation")
        ]


def train_and_choose(start: Sequence[Callable[[], Trial]], steps: int, halve: bool) -> tuple[list[Trial], int]:
    """(all trials, the number of the best); ties go to the earlier one.

    The best has its best weights, and is ready to be measured. `halve=False` trains every trial to the end.
    """
    trials = [make() for make in start]
    left = list(range(len(trials)))
    for share in RUNGS if halve else ():
        for number in left:
            trials[number].trainer.run(until=max(1, round(share * steps)))
        left = sorted(_ranked(trials, left)[: -(-len(left) // 2)])
    for number in left:
        trials[number].trainer.run()
    best = _ranked(trials, left)[0]
    trials[best].trainer.take_best()
    trials[best].step.eval()
    return trials, best


def _ranked(trials: Sequence[Trial], numbers: Sequence[int]) -> list[int]:
    """From the best score to the worst."""
    scores = {number: trials[number].score() for number in numbers}
    return sorted(numbers, key=lambda number: -scores[number])


MAPPED = 60  # items of a map: enough to see whether modalities mix


@dataclass(frozen=True)
class JobResult:
    """What one job found, as its file in `jobs/` has it."""

    rows: list[Measurement]
    hits: dict[str, list[float]]  # direction -> hit at 1 of each query
    asked: dict[str, list[int]]  # direction -> which test items are its queries
    items: list[str]  # the test items
    chosen: int  # number of the trial with the best validation score
    trials: list[dict[str, Any]]  # changes to the training config, the validation score, and the steps made
    curve: list[dict[str, float]]
    patterns: list[dict[str, Any]]  # modalities that training rows have, and how many rows
    examples: dict[str, Any] | None
    left_out: list[str]  # measures that these test rows do not allow, and why
    seconds: float
    choice: str | None = None  # what a model without steps chose by itself


def run_job(config: CompareConfig, job: Job) -> JobResult:
    """Train every trial, choose by validation score, and measure the chosen one; no test row is looked at before."""
    setting, seed, method = job.setting, job.seed, find_method(job.method)
    config = config.only(job.dataset)
    started = time.perf_counter()
    hidden = "" if method.ideal else setting
    swept = {} if job.sweep is None else {job.sweep.key: job.sweep.value}
    start = [
        partial(make_trial, config, hidden, seed, form, changes | swept)
        for form, changes in trials_of(job.method, config.steps, config.trials, config.settings[setting].regime)
    ]
    halve = method.steps and config.settings[setting].regime == "joint"
    trials, chosen = train_and_choose(start, config.steps, halve)
    step, rows = trials[chosen].step, trials[chosen].rows
    z, present = encode_all(step.model, [rows.test])
    hits, asked, left_out = dict[str, list[float]](), dict[str, list[int]](), list[str]()
    relevant = relevance_of(rows.features, config.relevant_by)
    measured = measure_rows(
        ["retrieval", *config.measures],
        z=z,
        present=present,
        align=step.calibration,
        seed=seed,
        labelled=partial(_labelled, step.model, rows),
        hits=hits,
        hubs=method.hubs,
        asked=asked,
        relevant=None if relevant is None else relevant[rows.test.home].tolist(),
        embed=partial(_embedded, step.model, rows) if isinstance(step.model, AlignedModel) else None,
        training=partial(encode_all, step.model, list(rows.data.train.values())),
        left_out=left_out,
    )
    examples = None
    if "examples" in config.measures and (setting, seed) == (next(iter(config.settings)), config.seeds[0]):
        examples = _examples(config.relevant_by, rows, z, present, left_out)
    counts = pattern_counts(list(rows.data.train.values()))
    return JobResult(
        rows=measured,
        hits=hits,
        asked=asked,
        items=[str(name) for name in rows.test.ids],
        chosen=chosen,
        trials=[{"changes": one.changes, config.metric: one.score(), "steps": one.steps} for one in trials],
        curve=trials[chosen].curve(),
        patterns=[{"has": pattern["has"], "rows": pattern["rows"]} for pattern in counts],
        examples=examples,
        left_out=left_out,
        seconds=time.perf_counter() - started,
        choice=getattr(step.model, "choice", None),
    )


def make_trial(config: CompareConfig, hidden: str, seed: int, form: str | None, changes: Changes) -> Trial:
    """A trial before its first step; rows and starting models are shared between trials."""
    trained, rows = training_config(config, hidden, seed, changes), shared_rows(config, hidden, seed, form)
    model = copy.deepcopy(_start(config, hidden, seed, form, trained.model))
    return Trial.of(trained, {"standardize": form} | changes, rows, model)


def _embedded(model: AlignedModel, rows: ComparedRows, wanted: np.ndarray, present: np.ndarray) -> torch.Tensor:
    """One vector for each of these test rows, from the modalities that `present` leaves it."""
    vectors: torch.Tensor = model.embed(rows.test.fetch(wanted, present, 0), torch.from_numpy(present))
    return vectors


def _labelled(model: Any, rows: ComparedRows) -> LabelledRows | None:
    """The rows of all parts with their labels, if the data have any."""
    labels = rows.features.labels
    if labels is None:
        return None
    parts = {"train": next(iter(rows.data.train.values())), "val": rows.data.validation[0], "test": rows.test}
    return LabelledRows(
        *encode_all(model, list(parts.values())),
        labels=[str(labels[row]) for source in parts.values() for row in source.home],
        split=[part for part, source in parts.items() for _ in range(len(source))],
    )


def _examples(
    relevant_by: str, rows: ComparedRows, z: Vectors, present: torch.Tensor, left_out: list[str]
) -> dict[str, Any]:
    """A map of the complete test rows, if there are enough, and what a few queries find."""
    complete = present.all(1)
    shown = nearest_examples(rows.features, rows.test.home, z, present, relevant_by)
    examples: dict[str, Any] = {"neighbours": shown}
    if complete.sum() < 4:
        rows_have = plural(int(complete.sum()), "test row has", "test rows have")
        left_out.append(f"examples: {rows_have} every modality; a map needs at least 4")
    else:
        examples["map"] = picture({name: values[complete] for name, values in z.items()}, MAPPED)
    return examples


@lru_cache(maxsize=8)
def shared_rows(config: CompareConfig, hidden: str, seed: int, form: str | None) -> ComparedRows:
    """The rows of a setting and seed; several methods use them one after the other."""
    if form is None:
        return open_rows(config, hidden, seed, None)
    plain = shared_rows(config, hidden, seed, None)
    if form in UNIT_ROWS:
        return on_kernel_features(plain, form, seed)
    return standardized(plain, form, _axes(config, hidden, seed))


@lru_cache(maxsize=4)
def _axes(config: CompareConfig, hidden: str, seed: int) -> Axes:
    """Every form of standardised features has the same."""
    return principal_axes(list(shared_rows(config, hidden, seed, None).data.train.values()))


@lru_cache(maxsize=32)
def _start(config: CompareConfig, hidden: str, seed: int, form: str | None, model: ModelSection) -> Any:
    """The model before its first step: the same for every method that starts alike."""
    plain = training_config(config, hidden, seed, {}).model_copy(update={"model": model})
    return start_model(plain, shared_rows(config, hidden, seed, form).data)


ExtraJobs = Mapping[str, Callable[[], Any]]  # what is done -> a function that workers can import
T = TypeVar("T")


def run_jobs(
    config: CompareConfig,
    folder: Path,
    progress: Progress = no_progress,
    jobs: Sequence[Job] | None = None,
    extra_jobs: ExtraJobs | None = None,
    while_waiting: Callable[[], None] = lambda: None,
) -> tuple[dict[Job, JobResult], dict[str, Any]]:
    """(the results of all jobs, what each function of `extra_jobs` returned): these are called in the same processes.

    Jobs that `folder` already has are not run again; `progress` is called after each. The order of the results, and the
    results themselves, do not depend on the number of workers. `while_waiting` is called in this process once the others
    have been given their work, for which it would only wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    jobs, extra_jobs = jobs_of(config) if jobs is None else jobs, extra_jobs or {}
    paths = {job: _path(folder, config, job) for job in jobs}
    results = {job: _stored(path) for job, path in paths.items() if path.is_file()}
    others: dict[str, Any] = {}
    total = len(jobs) + len(extra_jobs)
    progress(len(results), total, "from an earlier run" if results else "")
    left = [job for job in jobs if job not in results]
    with closing(_each(config, left, extra_jobs, while_waiting)) as finished:  # ends workers on Ctrl-C
        for what, result in finished:
            if isinstance(what, Job):
                with new_file(paths[what], force=True) as draft:
                    draft.write_text(json.dumps(asdict(result)), encoding="utf-8")
                results[what] = result
                text = f"{what.dataset}, {what.setting}, {what.row}, seed {what.seed}"
            else:
                others[what], text = result, what
            progress(len(results) + len(others), total, text)
    return {job: results[job] for job in jobs}, {name: others[name] for name in extra_jobs}


def longest_first(jobs: Sequence[Job]) -> list[Job]:
    """The same jobs: an aligner, which searches by cross-validation, takes longest, then what fits a latent model at
    every step. What starts last is short, and no process waits long for another."""

    def takes(job: Job) -> int:
        method = find_method(job.method)
        return 2 if method.model == "aligner" else int(method.calibrated)

    return sorted(jobs, key=takes, reverse=True)


def _each(
    config: CompareConfig, jobs: list[Job], extra_jobs: ExtraJobs, while_waiting: Callable[[], None]
) -> Generator[tuple[Job | str, Any], None, None]:
    """Run the jobs and the extra ones; yields each as it is finished."""
    workers = min(config.workers or os.cpu_count() or 1, len(jobs) + len(extra_jobs))
    work: list[tuple[Job | str, Callable[[], Any]]] = list(extra_jobs.items())
    work += [(job, partial(run_job, config, job)) for job in longest_first(jobs)]
    with worker_pool(workers if workers > 1 else 0) as pool:
        if pool is None:
            yield from ((what, _on_one_thread(str(what), function)) for what, function in work)
            return
        running = {pool.submit(_on_one_thread, str(what), function): what for what, function in work}
        while_waiting()
        for finished in as_completed(running):
            try:
                yield running[finished], finished.result()
            except BrokenProcessPool as error:
                raise JobError(
                    f"{running[finished]}, or another one of {workers} at work: a worker process was ended from outside, "
                    "perhaps for lack of memory. What is finished is kept: run the same command again, with fewer "
                    "workers (workers=1)"
                ) from error


def _on_one_thread(what: str, function: Callable[[], T]) -> T:
    """Call the function on one thread; an error says what was done."""
    try:
        with one_thread():
            return function()
    except InputError as error:
        raise InputError(f"{what}: {error}") from error
    except Exception as error:
        raise JobError(f"{what}: {error}\n{traceback.format_exc()}") from None


def _stored(path: Path) -> JobResult:
    """The result of a job that an earlier run wrote."""
    with parsing(path, "a result of compare", "delete it, and the job runs again"):
        return JobResult(**json.loads(path.read_text("utf-8")))


def _path(folder: Path, config: CompareConfig, job: Job) -> Path:
    """A file per job, named after all that its result depends on."""
    part = config.only(job.dataset)
    hidden = None if find_method(job.method).ideal else part.settings[job.setting].model_dump(mode="json")
    left_out = {"settings", "methods", "seeds", "workers", "sweep", "datasets", "table"}
    shared = part.model_dump(mode="json", exclude=left_out)
    first = (job.setting, job.seed) == (next(iter(part.settings)), part.seeds[0])  # has examples
    key = json.dumps([shared, hidden, job.dataset, job.setting, job.row, job.seed, first], sort_keys=True)
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
