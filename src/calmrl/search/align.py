"""Which modalities of a collection can be put into one space, and the aligner that does it."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from calmrl._support.engine import Engine, LocalEngine
from calmrl._support.output import new_file
from calmrl._support.parsing import read_json
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.posterior import embed_with_certainty
from calmrl.convention import check
from calmrl.data.features.relevance import ROW, relevance_texts
from calmrl.data.features.spread_rows import SpreadArrays
from calmrl.errors import InputError
from calmrl.models.saved import load
from calmrl.search.collection import Collection, sha256

MIN_PAIRS = 20  # items that must have both of two modalities before anything is learned from them
PLACE_ROWS = 1 << 14  # items that are placed at once; a whole number of the blocks that `embed_with_certainty` works in
FILES = ("aligner.json", "aligner.safetensors")


def linked(names: Sequence[str], present: np.ndarray) -> tuple[list[str], dict[str, str]]:
    """(modalities that enough items link with each other, why each of the others is not among them)."""
    mask = np.asarray(present).astype(np.int64)
    together = mask.T @ mask  # (k, k)
    groups: list[set[int]] = []
    for j in range(len(names)):
        touching = [group for group in groups if any(together[j, other] >= MIN_PAIRS for other in group)]
        groups = [group for group in groups if group not in touching] + [{j}.union(*touching)]
    best = max(groups, key=lambda group: (len(group) > 1, int(mask[:, sorted(group)].any(axis=1).sum())))
    inside = sorted(best) if len(best) > 1 else []
    return [names[j] for j in inside], {
        name: _reason(name, names, together, j) for j, name in enumerate(names) if j not in inside
    }


def _reason(name: str, names: Sequence[str], together: np.ndarray, j: int) -> str:
    if not together[j, j]:
        return "no item has it"
    others = [(int(together[j, other]), names[other]) for other in range(len(names)) if other != j]
    if not others:
        return "it is the only modality, so nothing else can find it"
    pairs, other = max(others)
    with_other = f"{pairs} items have both {name} and {other}"
    return (
        f"{with_other if pairs else f'no item has both {name} and another modality'}; {MIN_PAIRS} are needed to align"
    )


def fit(
    collection: Collection,
    names: list[str],
    groups: Sequence[Any] | None,
    keep: Path,
    settings: Aligner,
    relevant: Sequence[Any] | None = None,
    engine: Engine | None = None,
) -> Aligner | None:
    """The aligner of these modalities; kept in a folder until the index is whole, so that a killed run need not refit."""
    if not names:
        return None
    digest = _digest(collection, names, groups, settings, relevant)
    marker = keep / "fitted.json"
    if marker.is_file() and read_json(marker, "remove its folder, and the aligner is fitted again") == digest:
        return Aligner.load(keep / "aligner")
    columns = [list(collection.z).index(name) for name in names]
    rows = np.flatnonzero(collection.present[:, columns].any(axis=1))
    whole = len(rows) == len(collection)
    z = {name: collection.z[name] if whole else np.asarray(collection.z[name][rows]) for name in names}
    labels, values = (None if given is None else [given[int(row)] for row in rows] for given in (groups, relevant))
    present = collection.present[rows][:, columns]
    given: Any = (z, present)
    if engine is not None:
        check(z, present)
        given = (SpreadArrays(z, present, engine), None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="no row has both")  # `expected` says it for each direction
        aligner = clone(settings).fit(*given, groups=labels, relevant=values)
    marker.unlink(missing_ok=True)
    aligner.save(keep / "aligner", overwrite=(keep / "aligner").exists())
    with new_file(marker) as draft:
        draft.write_text(json.dumps(digest), encoding="utf-8")
    return aligner


def relevance_of_items(collection: Collection, relevant: str | Sequence[Any] | None) -> list[Any] | None:
    """One value per item: those of a column, or as given."""
    if relevant is None or (isinstance(relevant, str) and relevant == ROW):
        return None
    if not isinstance(relevant, str):
        if len(relevant) != len(collection):
            raise InputError(
                f"relevant has {len(relevant)} values but there are {len(collection)} items; pass one per item"
            )
        return list(relevant)
    if relevant in ("text", "labels"):
        values: list[Any] = [item.texts if relevant == "text" else item.labels for item in collection.known]
    else:
        values = [item.columns.get(relevant) for item in collection.known]
    if not any(value is not None for value in relevance_texts(values)):
        raise InputError(f"no item has a value in the column {relevant!r}, so it cannot say which items are relevant")
    return values


def _digest(
    collection: Collection,
    names: list[str],
    groups: Sequence[Any] | None,
    settings: Aligner,
    relevant: Sequence[Any] | None,
) -> str:
    """Changes with everything that the fit depends on."""
    content = [
        [item.id, {name: item.stamps[name][0] for name in names if name in item.stamps}] for item in collection.known
    ]
    encoders = {name: collection.encoders.get(name) for name in names}
    siblings = None if groups is None else [str(label) for label in groups]
    values = None if relevant is None else relevance_texts(relevant)
    return sha256(json.dumps([content, encoders, siblings, values, settings.get_params(deep=False)]).encode())


def load_aligner(path: str | Path) -> Aligner:
    """An aligner that was saved, or that `calmrl train` made."""
    if (Path(path) / FILES[0]).is_file():
        return Aligner.load(path)
    model = load(path).model
    if not hasattr(model, "aligner"):
        raise InputError(
            f"{path} holds a model of kind {model.kind!r}; an index takes a saved Aligner, or what "
            "calmrl train method=calmrl made, because it fuses queries by the posterior of the latent model"
        )
    return model.aligner


def encoders_of(model: Any) -> dict[str, str]:
    """Modality -> encoder that a trained model was made with, where it says so."""
    if model is None or isinstance(model, Aligner) or (Path(model) / FILES[0]).is_file():
        return {}
    described = getattr(load(model), "encoders_", None) or {}
    return {name: entry["name"] for name, entry in described.get("encoders", {}).items()}


def check_aligner(aligner: Aligner, collection: Collection) -> tuple[list[str], dict[str, str]]:
    """(modalities that a given aligner covers, why the others are not searched)."""
    widths = {name: len(lift.centre) for name, lift in zip(aligner._order, aligner._lifts, strict=True)}
    inside = [name for name in collection.z if name in widths]
    for name in inside:
        if collection.z[name].shape[1] != widths[name]:
            raise InputError(
                f"{name} has width {collection.z[name].shape[1]} but the model was fitted on width {widths[name]}; use "
                "the encoder that the model was made with"
            )
    if not inside:
        raise InputError(f"the model knows {', '.join(widths)}, the collection has {', '.join(collection.z)}")
    return inside, {name: "the model does not know it" for name in collection.z if name not in widths}


def place(
    aligner: Aligner | None, collection: Collection, engine: Engine | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(vectors (N, L), certainty (N,)) of items; zero where nothing that is aligned was observed."""
    if aligner is None or not len(collection):
        width = 0 if aligner is None else aligner._space.latent_dim
        return np.zeros((len(collection), width), np.float32), np.zeros(len(collection), np.float32)
    k, n = len(aligner._order), len(collection)
    present = np.zeros((n, k), dtype=bool)
    for j, name in enumerate(aligner._order):
        if name in collection.z:
            present[:, j] = collection.present[:, list(collection.z).index(name)]
    held = {name: collection.z[name] for name in aligner._order if name in collection.z}
    starts = range(0, n, PLACE_ROWS)
    blocks = (
        (
            {name: np.array(a[start : start + PLACE_ROWS]) for name, a in held.items()},
            present[start : start + PLACE_ROWS],
        )
        for start in starts
    )
    parts = list((engine or LocalEngine()).map(_place_block, blocks, aligner))
    return np.concatenate([vectors for vectors, _ in parts]), np.concatenate([certainty for _, certainty in parts])


def _place_block(block: tuple[dict[str, np.ndarray], np.ndarray], aligner: Aligner) -> tuple[np.ndarray, np.ndarray]:
    """(vectors, certainty) of some items; a modality that no item has is left out of the block."""
    values, present = block
    z = {
        name: values[name] if name in values else np.zeros((len(present), len(lift.centre)), np.float32)
        for name, lift in zip(aligner._order, aligner._lifts, strict=True)
    }
    return embed_with_certainty(aligner, z, present)


def aligner_parts(aligner: Aligner | None) -> dict[str, bytes]:
    """A fitted aligner as files."""
    if aligner is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        aligner.save(Path(folder) / "aligner")
        return {name: (Path(folder) / "aligner" / name).read_bytes() for name in FILES}


def aligner_from(parts: Mapping[str, bytes]) -> Aligner | None:
    """The inverse of `aligner_parts`."""
    if FILES[0] not in parts:
        return None
    folder = Path(tempfile.mkdtemp())
    try:
        for name in FILES:
            (folder / name).write_bytes(parts[name])
        return Aligner.load(folder)
    finally:
        shutil.rmtree(folder)
