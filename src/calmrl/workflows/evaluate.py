"""How good a trained model is on test rows: retrieval, classification, imputation, anchor shift."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from calmrl.config import TrainConfig, load
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.errors import InputError
from calmrl.metrics import retrieval
from calmrl.metrics.measures import Measurement, row
from calmrl.metrics.model_rows import RANKED, LabelledRows, measure_rows, reranked_rows
from calmrl.metrics.registry import measures
from calmrl.models.saved import Trained
from calmrl.models.saved import load as load_model
from calmrl.models.vast.matching import cat_conditions
from calmrl.training.validate import encode_all
from calmrl.workflows.build import open_features_of, parts_of
from calmrl.workflows.build_media import open_test_media

MEASURES = [group for group in measures() if group not in ("pool", "examples")]


def evaluate(folder: Path, data: Path | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(tidy rows, meta) of the model in `folder`, on the test rows of `data`, else of the sources it was trained on.

    Data without a split are test rows throughout. Every modality is asked for by every other; incomplete rows take part
    in the directions that they can.
    """
    model = load_model(folder)
    config = load(_config(folder), kind="train")
    assert isinstance(config, TrainConfig)
    if config.model.kind == "vast":
        if data is not None:
            raise InputError("a model of raw media is evaluated on the test rows of its sources; leave out --data")
        return evaluate_media(model, config)
    sets = {data.name: (open_features(data), None)} if data is not None else _sources(config, model)
    rows: list[dict[str, Any]] = []
    meta = _meta(config)
    for name, (features, split) in sets.items():
        known = {"dataset": name, "method": config.method, "seed": config.seed}
        rows += [known | dict(one) for one in evaluate_on(model, features, split)]
        widths = {key: array.shape[1] for key, array in features.z.items() if key in model.names}
        meta["datasets"][name] = {"rows": len(features), "modalities": widths, "source": features.source}
    return rows, meta


def _meta(config: TrainConfig) -> dict[str, Any]:
    method = {"about": f"trained for {len(config.stages)} stage(s)", "ours": config.method == "calmrl"}
    return {"config": config.model_dump(mode="json"), "datasets": {}, "methods": {config.method: method}}


def evaluate_on(model: Trained, data: FeatureSet, split: np.ndarray | None = None) -> list[Measurement]:
    """Measurements of a model on the test rows of a feature set; classification where there are labels and training rows."""
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
    labelled = None
    if data.labels is not None and {"train", "val", "test"} <= set(split):
        labelled = LabelledRows(encoded, mask, [str(label) for label in data.labels[used]], split[used])
    given: dict[str, Any] = {
        "z": asked,
        "present": there,
        "align": model.align,
        "labelled": lambda: labelled,
        "seed": 0,
    }
    rows = measure_rows(["retrieval"], **given)
    if model.matching is not None:
        rows += reranked_rows(model.matching, asked, there)
    return rows + measure_rows(MEASURES, **given)


def _sources(config: TrainConfig, model: Trained) -> dict[str, tuple[FeatureSet, np.ndarray | None]]:
    found: dict[str, tuple[FeatureSet, np.ndarray | None]] = {}
    for name, section in config.sources.items():
        features = open_features_of(section, config.root)
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


def evaluate_media(model: Trained, config: TrainConfig) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(tidy rows, meta) of a model of raw media on the test rows of its sources."""
    rows: list[dict[str, Any]] = []
    meta = _meta(config)
    for name, media in open_test_media(config).items():
        z, present = encode_all(model.model, [media])
        given = {"z": z, "present": present, "align": model.align, "labelled": lambda: None, "seed": 0}
        measured = measure_rows(["retrieval", "imputation", "shift"], **given)
        if model.model.matching is not None:
            measured += captions_rows(model.model, media, z, present)
        origin = {"dataset": name, "method": config.method, "seed": config.seed}
        rows += [origin | dict(one) for one in measured]
        meta["datasets"][name] = {"rows": len(media), "modalities": dict.fromkeys(model.names, model.width)}
    if not rows:
        raise InputError(
            'no source has rows of split "test"; give some of them that split, or add a source with part: test'
        )
    return rows, meta


@torch.no_grad()
def captions_rows(net: Any, media: Any, z: dict[str, torch.Tensor], present: torch.Tensor) -> list[Measurement]:
    """Every caption against every item by its other modalities, both ways, before and after the matching encoder."""
    text = net.names.index("text")
    able = (present[:, [j for j in range(len(net.names)) if j != text]].any(1)).numpy()
    conditions, tokens, owner = [], [], []
    for wanted in np.array_split(np.arange(len(media)), -(-len(media) // media.chunk)):
        mask = torch.from_numpy(media.present[wanted])
        _, inner = net.encode(media.fetch(wanted, media.present[wanted], 0), mask)
        conditions.append(net.matching.conditions(inner, mask))
    for part, at in media.captions():
        tokens.append(part)
        owner += at.tolist()
    kept = [i for i, item in enumerate(owner) if able[item]]
    if len(kept) < 2:
        return []
    said = {key: torch.cat([part[key] for part in tokens])[kept] for key in tokens[0]}
    nothing = media.fetch(np.zeros(0, dtype=int), np.zeros((0, len(net.names)), dtype=bool), 0)
    only = torch.zeros(len(kept), len(net.names), dtype=torch.bool)
    only[:, text] = True
    queries = net(nothing | {"text": said}, only)["text"]
    items = torch.stack([rows for name, rows in z.items() if name != "text"]).sum(0)[able]
    scores = queries @ normalize(items, dim=1).T
    features, there = cat_conditions(conditions)
    chosen = torch.from_numpy(able)
    ids, gallery = [owner[i] for i in kept], np.flatnonzero(able).tolist()
    asked = sorted(set(ids))
    found = []
    for suffix, again in (("", False), (" re-ranked", True)):
        for task, by_items in (("text->all", False), ("all->text", True)):
            final = scores
            if again:
                final = net.matching.rerank(said, (features[chosen], there[chosen]), scores, by_items=by_items)
            if by_items:
                rows = [gallery.index(item) for item in asked]  # items that have a caption to be found
                result = retrieval(scores=final.T[rows], query_ids=asked, gallery_ids=ids)
            else:
                result = retrieval(scores=final, query_ids=ids, gallery_ids=gallery)
            found += [row(f"{task}{suffix}", key, result[key], result["n"]) for key in RANKED]
    return found
