"""One cell of a comparison: a method in a setting with a seed. All its trials, the choice, and the measures."""

from __future__ import annotations

import copy
import time
from functools import lru_cache
from typing import Any

import torch

from calmrl.config import CompareConfig
from calmrl.config.schema.train import TrainConfig
from calmrl.data.loaders.feature_rows import pattern_counts
from calmrl.metrics import model_rows as measure
from calmrl.metrics.classify import classification
from calmrl.models.heads.model import Heads
from calmrl.training.recipes import is_ideal, recipe
from calmrl.training.validate import encode_all, retrieval_scores
from calmrl.workflows.build import build_step, build_trainer, start_model
from calmrl.workflows.compare.rows import Rows, open_rows, training_config

Job = tuple[str, str, int]  # setting, method, seed


def run_job(config: CompareConfig, job: Job) -> dict[str, Any]:
    """{"rows": tidy rows, "hits", "chosen": changes of the best trial, "trials", "curve", "patterns", ...}.

    The trial with the best validation score is measured on the test rows; no test row is looked at before.
    """
    setting, method, seed = job
    started = time.perf_counter()
    hidden = "" if is_ideal(method) else setting
    text = config.model_dump_json()
    base, _, swept = method.partition(" ")
    more = _swept(config, swept)
    best: tuple[float, Any] | None = None
    tried = []
    for changes in recipe(base, config.steps, config.trials):
        form = changes["standardize"]
        rows = _rows(text, hidden, seed, form)
        trained = training_config(config, hidden, seed, {k: v for k, v in changes.items() if k != "standardize"} | more)
        step, curve = _train(text, trained, rows, hidden, form)
        z, present = encode_all(step.model, rows.data.validation)
        score = retrieval_scores(z, present)[config.metric]
        tried.append({"changes": changes | more, config.metric: score})
        if best is None or score > best[0]:
            best = (score, (step, curve, len(tried) - 1, rows))
    assert best is not None
    step, curve, number, rows = best[1]
    z, present = encode_all(step.model, [rows.test])
    found = _measure(config, step, rows, seed, z, present)
    first = (setting, seed) == (next(iter(config.settings)), config.seeds[0])
    return found | {
        "chosen": number,
        "trials": tried,
        "curve": curve,
        "patterns": [
            {"has": kind["has"], "rows": kind["rows"]} for kind in pattern_counts(list(rows.data.train.values()))
        ],
        "examples": _examples(rows, z, present) if first and "examples" in config.measures else None,
        "seconds": time.perf_counter() - started,
    }


def _train(text: str, trained: TrainConfig, rows: Rows, hidden: str, form: str) -> tuple[Any, list[dict[str, Any]]]:
    model = copy.deepcopy(_start(text, hidden, trained.seed, form, trained.model.model_dump_json()))
    step = build_step(trained, rows.data, model)
    curve: list[dict[str, Any]] = []
    trainer = build_trainer(trained, rows.data, step, None, listen=curve.append)
    trainer.run()
    trainer.take_best()
    kept: list[dict[str, Any]] = [
        {key: record[key] for key in ("step", "loss", "MRR") if key in record}
        for record in curve
        if record["kind"] in ("train", "validation")
    ]
    return step.eval(), kept


def _measure(
    config: CompareConfig, step: Any, rows: Rows, seed: int, z: measure.Vectors, present: torch.Tensor
) -> dict[str, Any]:
    found, hits = measure.retrieval_rows(z, present)
    if step.calibration is not None:
        found += measure.calibration_rows(step.calibration, z, present, config.measures)
    if "geometry" in config.measures:
        found += measure.geometry_rows(z, present)
    if "pool" in config.measures:
        found += measure.pool_rows(step.calibration, z, present, seed)
    if "classification" in config.measures:
        found += _classification(step.model, rows)
    return {"rows": found, "hits": hits, "items": [str(name) for name in rows.test.ids]}


def _classification(model: Any, rows: Rows) -> list[dict[str, Any]]:
    """Linear probe and nearest neighbours on the mean of what a row has, if the data have labels."""
    labels = rows.features.labels
    if labels is None:
        return []
    parts = {"train": next(iter(rows.data.train.values())), "val": rows.data.validation[0], "test": rows.test}
    z, present = encode_all(model, list(parts.values()))
    known = [str(labels[row]) for source in parts.values() for row in source.home]
    return classification(z, present, known, [part for part, source in parts.items() for _ in range(len(source))])


def _examples(rows: Rows, z: measure.Vectors, present: torch.Tensor) -> dict[str, Any]:
    complete = present.all(1)
    z = {name: values[complete] for name, values in z.items()}
    found: dict[str, Any] = {"map": measure.picture(z), "neighbours": []}
    if rows.features.text is not None and complete.any():
        shown = complete.nonzero()[:, 0].tolist()
        ids = [str(rows.test.ids[i]) for i in shown]
        captions = [_caption(rows.features.text[rows.test.home[i]], name) for i, name in zip(shown, ids, strict=True)]
        names = list(z)
        asks = "text" if "text" in names else names[0]
        gives = next(name for name in names if name != asks)
        found["neighbours"] = measure.neighbours(z, captions, ids, asks, gives)
    return found


def _caption(text: Any, name: str) -> str:
    if isinstance(text, (list, tuple)):
        text = text[0] if len(text) else None
    return str(text) if text else name


@lru_cache(maxsize=4)
def _rows(text: str, hidden: str, seed: int, form: str) -> Rows:
    """The rows of a setting and seed; several methods use them one after the other."""
    return open_rows(CompareConfig.model_validate_json(text), hidden, seed, form)


@lru_cache(maxsize=32)
def _start(text: str, hidden: str, seed: int, form: str, model: str) -> Heads:
    """The model before its first step: the same for every method that starts alike."""
    config = CompareConfig.model_validate_json(text)
    plain = training_config(config, hidden, seed, {})
    section = type(plain.model).model_validate_json(model)
    return start_model(plain.model_copy(update={"model": section}), _rows(text, hidden, seed, form).data)


def _swept(config: CompareConfig, swept: str) -> dict[str, Any]:
    """ "objective.temperature=0.1" -> {"objective.temperature": 0.1}, with the value as the config has it."""
    if not swept:
        return {}
    key, _, said = swept.partition("=")
    return {key: next(value for value in config.sweep[key] if str(value) == said)}
