"""How good a trained model is on test rows: retrieval, classification, imputation, anchor shift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl.build import open_features_of, parts_of
from calmrl.config import TrainConfig, load
from calmrl.data.features import FeatureSet, open_features
from calmrl.errors import InputError
from calmrl.evaluate import model as measure
from calmrl.evaluate.classify import classification
from calmrl.trained import Trained
from calmrl.trained import load as load_model

MEASURES = ("imputation", "shift")


def evaluate(folder: Path, data: Path | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(tidy rows, meta) of the model in `folder`, on the test rows of `data`, else of the sources it was trained on.

    Data without a split are test rows throughout. Every modality is asked for by every other; incomplete rows take part
    in the directions that they can.
    """
    model = load_model(folder)
    config = load(_config(folder), kind="train")
    assert isinstance(config, TrainConfig)
    sets = {data.name: (open_features(data), None)} if data is not None else _sources(config, model)
    rows: list[dict[str, Any]] = []
    meta: dict[str, Any] = {"config": config.model_dump(mode="json"), "datasets": {}, "methods": {}}
    meta["methods"][config.method] = {"about": f"trained in {folder}", "ours": config.method == "calmrl"}
    for name, (features, split) in sets.items():
        known = {"dataset": name, "method": config.method, "seed": config.seed}
        rows += [known | one for one in evaluate_on(model, features, split)]
        widths = {key: array.shape[1] for key, array in features.z.items() if key in model.names}
        meta["datasets"][name] = {"rows": len(features), "modalities": widths, "source": features.source}
    return rows, meta


def evaluate_on(model: Trained, data: FeatureSet, split: np.ndarray | None = None) -> list[dict[str, Any]]:
    """Tidy rows of a model on the test rows of a feature set; classification where there are labels and training rows."""
    names = [name for name in model.names if name in data.z]
    if len(names) < 2:
        raise InputError(f"the model knows {', '.join(model.names)}, the data have {', '.join(data.z)}; two must agree")
    split = _whole(data) if split is None else split
    present = data.present[:, [data.names.index(name) for name in names]]
    used = (split != "") & present.any(axis=1)
    z = {name: np.asarray(data.z[name][used]) for name in names}
    encoded = {name: torch.nan_to_num(torch.as_tensor(rows)) for name, rows in model.encode(z, present[used]).items()}
    mask = torch.zeros(int(used.sum()), len(model.names), dtype=torch.bool)
    for j, name in enumerate(names):
        mask[:, model.names.index(name)] = torch.from_numpy(np.ascontiguousarray(present[used][:, j]))
    test = torch.from_numpy(split[used] == "test")
    if not test.any():
        raise InputError('no row has split "test"; there is nothing to evaluate on')
    asked, there = {name: rows[test] for name, rows in encoded.items()}, mask[test]
    rows, _ = measure.retrieval_rows(asked, there)
    if model.matching is not None:
        rows += measure.reranked_rows(model.matching, asked, there)
    if model.align is not None:
        rows += measure.calibration_rows(model.align, asked, there, MEASURES)
    rows += measure.geometry_rows(asked, there)
    if data.labels is not None and {"train", "val", "test"} <= set(split):
        labels = [str(label) for label in data.labels[used]]
        rows += classification(encoded, mask, labels, split[used])
    return rows


def _sources(config: TrainConfig, model: Trained) -> dict[str, tuple[FeatureSet, np.ndarray | None]]:
    found: dict[str, tuple[FeatureSet, np.ndarray | None]] = {}
    for name, section in config.sources.items():
        features = open_features_of(section)
        split, _ = parts_of(features, section, list(model.names), config.seed)
        if (split == "test").any():
            found[name] = (features, split)
    if not found:
        raise InputError('no source has rows of split "test"; name test data with --data')
    return found


def _whole(data: FeatureSet) -> np.ndarray:
    return np.full(len(data), "test", dtype=object) if data.split is None else data.split


def _config(folder: Path) -> Path:
    path = folder / "config.yaml"
    return path if path.is_file() else folder / "model" / "config.yaml"
