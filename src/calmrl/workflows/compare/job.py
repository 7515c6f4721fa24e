"""One job of a comparison: a method in a setting with a seed. All its trials, the choice, and the measures."""

import copy
import json
import time
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch

from calmrl.config import CompareConfig
from calmrl.config.schema.train import ModelSection
from calmrl.data.features.relevance import relevance_of
from calmrl.data.loaders.feature_rows import Axes, pattern_counts, principal_axes
from calmrl.metrics.measures import Measurement
from calmrl.metrics.model_rows import LabelledRows, Vectors, measure_rows, picture
from calmrl.models.heads.kernel import UNIT_ROWS
from calmrl.training.method import Changes
from calmrl.training.methods import find_method
from calmrl.training.validate import encode_all
from calmrl.workflows.build import start_model
from calmrl.workflows.compare.kernel_rows import on_kernel_features
from calmrl.workflows.compare.plan import Job
from calmrl.workflows.compare.rows import ComparedRows, method_of, open_rows, standardized, training_config, trials_of
from calmrl.workflows.compare.trials import Trial, train_and_choose
from calmrl.workflows.examples import nearest_examples

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
    setting, method, seed = job.setting, job.method, job.seed
    config = config.only(job.dataset)
    started = time.perf_counter()
    hidden = "" if method_of(method).ideal else setting
    text = config.model_dump_json()
    base, _, swept = method.partition(" ")
    more = _swept(config, swept)
    start = [
        partial(_trial, config, text, hidden, seed, form, changes | more)
        for form, changes in trials_of(base, config.steps, config.trials, config.settings[setting].regime)
    ]
    halve = find_method(base).steps and config.settings[setting].regime == "joint"
    trials, chosen = train_and_choose(start, config.steps, halve)
    step, rows = trials[chosen].step, trials[chosen].rows
    z, present = encode_all(step.model, [rows.test])
    hits: dict[str, list[float]] = {}
    asked: dict[str, list[int]] = {}
    left_out: list[str] = []
    relevant = relevance_of(rows.features, config.relevant_by)
    measured = measure_rows(
        ["retrieval", *config.measures],
        z=z,
        present=present,
        align=step.calibration,
        seed=seed,
        labelled=partial(_labelled, step.model, rows),
        hits=hits,
        hubs=find_method(base).hubs,
        asked=asked,
        relevant=None if relevant is None else relevant[rows.test.home].tolist(),
        left_out=left_out,
    )
    first = (setting, seed) == (next(iter(config.settings)), config.seeds[0])
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
        examples=_examples(config.relevant_by, rows, z, present, left_out)
        if first and "examples" in config.measures
        else None,
        left_out=left_out,
        seconds=time.perf_counter() - started,
        choice=getattr(step.model, "choice", None),
    )


def _trial(config: CompareConfig, text: str, hidden: str, seed: int, form: str | None, changes: Changes) -> Trial:
    """A trial before its first step; rows and starting models are shared between trials."""
    trained, rows = training_config(config, hidden, seed, changes), _rows(text, hidden, seed, form)
    model = copy.deepcopy(_start(text, hidden, seed, form, trained.model.model_dump_json()))
    return Trial.of(trained, {"standardize": form} | changes, rows, model)


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
        left_out.append(f"examples: {int(complete.sum())} test rows have every modality; a map needs at least 4")
    else:
        examples["map"] = picture({name: values[complete] for name, values in z.items()}, MAPPED)
    return examples


@lru_cache(maxsize=8)
def _rows(text: str, hidden: str, seed: int, form: str | None) -> ComparedRows:
    """The rows of a setting and seed; several methods use them one after the other."""
    if form is None:
        return open_rows(CompareConfig.model_validate_json(text), hidden, seed, None)
    plain = _rows(text, hidden, seed, None)
    if form in UNIT_ROWS:
        return on_kernel_features(plain, form, seed)
    return standardized(plain, form, _axes(text, hidden, seed))


@lru_cache(maxsize=4)
def _axes(text: str, hidden: str, seed: int) -> Axes:
    """Every form of standardised features has the same."""
    return principal_axes(list(_rows(text, hidden, seed, None).data.train.values()))


@lru_cache(maxsize=32)
def _start(text: str, hidden: str, seed: int, form: str | None, model: str) -> Any:
    """The model before its first step: the same for every method that starts alike."""
    config = CompareConfig.model_validate_json(text)
    plain = training_config(config, hidden, seed, {})
    section = ModelSection.choose(json.loads(model))
    return start_model(plain.model_copy(update={"model": section}), _rows(text, hidden, seed, form).data)


def _swept(config: CompareConfig, swept: str) -> dict[str, Any]:
    """ "objective.temperature=0.1" -> {"objective.temperature": 0.1}, with the value as the config has it."""
    if not swept:
        return {}
    key, _, text = swept.partition("=")
    return {key: next(value for value in config.sweep[key] if str(value) == text)}
