"""The rows of a comparison: split, holes, and features standardised once for all methods."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from calmrl.config import CompareConfig
from calmrl.config.schema.train import ObjectiveSection, SourceSection, TrainConfig
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.relevance import ROW
from calmrl.data.loaders.feature_rows import Axes, FeatureRows, principal_axes, standardization
from calmrl.errors import InputError
from calmrl.models.registry import MODELS
from calmrl.training.method import Changes, Method
from calmrl.training.methods import FEATURES, continual, find_method
from calmrl.workflows.build import Data, open_data, open_features_of, parts_of

NAME = "data"  # of the one source
PATIENCE = 6  # validations without a better score, of 20 in a whole training, after which a trial stops


@dataclass
class ComparedRows:
    """Training and validation rows for the trainer, and test rows for the measures, all standardised alike."""

    data: Data
    test: FeatureRows
    features: FeatureSet


def method_of(name: str) -> Method:
    """The method of a row, whose name may end in a swept value: "calmrl objective.temperature=0.1"."""
    return find_method(name.partition(" ")[0])


def trials_of(name: str, steps: int, count: int, regime: str = "joint") -> list[tuple[str | None, Changes]]:
    """(form of the features, changes to the training config) of each trial of a method."""
    method = find_method(name)
    stages = method.stages("steps", steps)
    if regime == "continual" and method.steps and not method.ideal:
        method, stages = continual(method, steps)
    trained = "+".join(part for part in name.split("+") if part != method.hubs)  # without the way it is measured
    fixed = {"method": "calmrl" if method.ideal else trained, "stages": stages}
    return [
        (trial[FEATURES], {key: value for key, value in trial.items() if key != FEATURES} | fixed)
        for trial in method.configs(count)
    ]


def training_config(config: CompareConfig, setting: str, seed: int, changes: Mapping[str, Any]) -> TrainConfig:
    """The config of one trial: what all methods share, changed by the method. "ideal" hides nothing.

    `config` is about one data set, as `CompareConfig.only` gives it.
    """
    assert config.source is not None
    relevant = None if config.relevant_by == ROW else config.relevant_by
    values: dict[str, Any] = {
        "kind": "train",
        "sources": {NAME: config.source.model_dump(mode="json")},
        "modalities": config.modalities,
        "method": "contrastive",
        "model": {"kind": "heads", "width": config.width, "standardize": None},
        "batch_size": config.batch_size,
        "validation": {
            "metric": config.metric,
            "every": max(1, config.steps // 20),
            "patience": PATIENCE,
            "relevant": relevant,
        },
        "checkpoint": {"every": 0},
        "log_every": max(1, config.steps // 20),
        "seed": seed,
    }
    if setting:
        values["sources"][NAME]["hide"] = config.settings[setting].hide
    if not MODELS[changes.get("model.kind", "heads")].steps:
        groups = None if config.source.resplit is None else config.source.resplit.by
        values["model"] = {"candidates": config.trials, "groups": groups, "relevant": relevant}
    for key, value in changes.items():
        here = values
        *path, last = key.split(".")
        for part in path:
            here = here.setdefault(part, {})
        here[last] = deepcopy(value)  # a later key may change a part of it
    if "name" not in (values.get("objective") or {"name": ""}):  # a swept key of the method's own objective
        values["objective"]["name"] = find_method(values["method"]).objective
    if needs_anchor((values.get("objective") or {}).get("name", "")):
        values["objective"].setdefault("anchor", anchor_of(config))
    return TrainConfig.model_validate(values)


def needs_anchor(objective: str) -> bool:
    """Whether the objective compares one modality with all others, by default text."""
    fields = ObjectiveSection.member(objective).model_fields if objective else {}
    return "anchor" in fields and fields["anchor"].default is not None


def anchor_of(config: CompareConfig) -> str:
    """The anchor modality of objectives that need one: text, or, without a text, what most rows have."""
    assert config.source is not None
    features = features_of(config.source.model_dump_json())
    names = config.modalities or list(features.names)
    counts = {name: int(features.present[:, features.names.index(name)].sum()) for name in names}
    return "text" if "text" in counts else max(counts, key=lambda name: counts[name])


@lru_cache(maxsize=8)
def features_of(section: str) -> FeatureSet:
    """The features of a comparison, opened once; `section` is its source as JSON."""
    return open_features_of(SourceSection.model_validate_json(section))


def open_rows(config: CompareConfig, setting: str, seed: int, standardize: str | None = "scale") -> ComparedRows:
    """Split and hide as the config says (nothing is hidden for setting ""), and standardise on the training rows.

    `standardize=None` leaves the features as they are.
    """
    assert config.source is not None
    plain = training_config(config, setting, seed, {})
    features = features_of(config.source.model_dump_json())
    data = open_data(plain, {NAME: features})
    split, _ = parts_of(features, config.source, list(data.widths), seed)
    test = FeatureRows.of(features, split == "test", widths=data.widths, name="test")
    if not len(test):
        raise InputError('no row has split "test"; add one to the data, or set source.resplit')
    rows = ComparedRows(data, test, features)
    if standardize is None:
        return rows
    return standardized(rows, standardize, principal_axes(list(data.train.values())))


def standardized(rows: ComparedRows, how: str, axes: Axes) -> ComparedRows:
    """The same rows; `rows` have their features as they are, and `axes` are those of their training rows."""
    train, validation = list(rows.data.train.values()), rows.data.validation
    centres, maps = standardization(axes, how)
    widths = {name: matrix.shape[1] for name, matrix in maps.items()}
    mapped = [_mapped(source, centres, maps, widths) for source in (*train, *validation, rows.test)]
    done = replace(rows.data, train={NAME: mapped[0]}, validation=mapped[1:-1], widths=widths)
    return replace(rows, data=done, test=mapped[-1])


def _mapped(source: FeatureRows, centres: dict[str, Any], maps: dict[str, Any], widths: dict[str, int]) -> FeatureRows:
    """The same rows with features (x - centre) map, in memory."""
    rows = np.arange(len(source))
    x = source.fetch(rows, source.present, 0)
    z = {name: ((x[name] - centres[name]) @ maps[name]).numpy() for name in source.names}
    return replace(source, z=z, rows=rows, widths=widths)
