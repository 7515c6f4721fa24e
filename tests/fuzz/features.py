"""Feature directories, single files of features, and shards: as many rows and modalities as were written, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from calmrl.data import open_features, write_features
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.shards import Shards, write_shards
from tests.fuzz.family import Make, Sample

N = 23
WIDTHS = {"image": 5, "text": 3}


def arrays() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    present = rng.random((N, 2)) < 0.7
    present[:, 0] |= ~present.any(axis=1)
    z = {name: rng.normal(size=(N, width)).astype(np.float32) for name, width in WIDTHS.items()}
    return {name: np.where(present[:, [j]], z[name], np.float32("nan")) for j, name in enumerate(z)}, present


def about() -> dict[str, Any]:
    return {
        "ids": [f"item {row}" for row in range(N)],
        "split": ["train"] * N,
        "labels": list(range(N)),
        "text": ["a caption"] * N,
    }


def rows_of(features: FeatureSet) -> tuple[int, int]:
    """Rows and modalities, after reading all there is."""
    for array in features.z.values():
        np.asarray(array).sum()
    for values in (features.ids, features.split, features.labels, features.text, features.imputed):
        assert values is None or len(values) == len(features)
    return len(features), len(features.names)


def opened(path: Path) -> Any:
    return lambda damaged: rows_of(open_features(path))


def directory(folder: Path) -> Sample:
    z, present = arrays()
    std = {name: np.ones_like(array) for name, array in z.items()}
    whole = {name: np.nan_to_num(array) for name, array in z.items()}
    path = folder / "features"
    write_features(path, whole, present, **about(), imputed=~present, std=std)
    return Sample(sorted(path.iterdir()), opened(path), path.name)


def made_by_hand(folder: Path) -> Sample:
    z, present = arrays()
    path = folder / "byhand"
    path.mkdir()
    for name, array in {**z, "present": present}.items():
        np.save(path / f"{name}.npy", array)
    pq.write_table(pa.table({"id": about()["ids"]}), path / "meta.parquet")
    return Sample(sorted(path.iterdir()), opened(path), path.name)


def npz(folder: Path) -> Sample:
    z, present = arrays()
    np.savez(folder / "a.npz", **z, present=present, ids=np.array(about()["ids"]))
    return Sample([folder / "a.npz"], opened(folder / "a.npz"), "a.npz")


def packed_npz(folder: Path) -> Sample:
    z, present = arrays()
    np.savez_compressed(folder / "b.npz", **z, present=present)
    return Sample([folder / "b.npz"], opened(folder / "b.npz"), "b.npz")


def safetensors(folder: Path) -> Sample:
    z, present = arrays()
    path = folder / "a.safetensors"
    tensors = {name: torch.from_numpy(array) for name, array in z.items()} | {"present": torch.from_numpy(present)}
    save_file(tensors, path, metadata={"modalities": '["text", "image"]', "ids": str(list(range(N)))})
    return Sample([path], opened(path), path.name)


def parquet(folder: Path) -> Sample:
    z, present = arrays()
    columns: dict[str, Any] = {"id": about()["ids"], "text": about()["text"]}
    for j, (name, array) in enumerate(z.items()):
        lists = [row.tolist() if there else None for row, there in zip(array, present[:, j], strict=True)]
        columns[name] = pa.array(lists, pa.list_(pa.float32()))
    path = folder / "a.parquet"
    pq.write_table(pa.table(columns), path)
    return Sample([path], opened(path), path.name)


def shards(folder: Path) -> Sample:
    z, present = arrays()
    features = write_features(folder / "f", z, present, **about())
    paths = write_shards(features, folder / "shards", rows=9)

    def read(damaged: Path) -> tuple[int, int]:
        chunks = list(Shards(paths, WIDTHS, rows=7))
        return sum(len(mask) for _, mask in chunks), int(sum(mask.sum() for _, mask in chunks))

    return Sample(paths, read, ".tar")


FAMILIES: dict[str, Make] = {
    "directory": directory,
    "by-hand": made_by_hand,
    "npz": npz,
    "packed-npz": packed_npz,
    "safetensors": safetensors,
    "parquet": parquet,
    "shards": shards,
}
