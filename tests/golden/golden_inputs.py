"""Small inputs of the cases, always the same: rows with holes and feature directories; for items see `colour_world`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl.data import FeatureSet, open_features, write_features

WIDTHS = {"image": 7, "text": 6, "sound": 5}


def rows(n: int = 60, seed: int = 0, widths: Mapping[str, int] = WIDTHS, dtype: str = "float64"):
    """(z, present): modalities that show three shared numbers; holes hold NaN, the first quarter is complete."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 3))
    z = {name: shared @ rng.normal(size=(3, d)) + 0.4 * rng.normal(size=(n, d)) + 0.5 for name, d in widths.items()}
    present = rng.random((n, len(widths))) < 0.65
    present[np.arange(n), rng.integers(0, len(widths), n)] = True
    present[: n // 4] = True
    for j, name in enumerate(z):
        z[name] = np.where(present[:, [j]], z[name], np.nan).astype(dtype)
    return z, present


def complete(n: int = 40, seed: int = 1, width: int = 6) -> dict[str, np.ndarray]:
    """Complete rows of one width."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, width))
    return {name: shared + 0.6 * rng.normal(size=(n, width)) for name in WIDTHS}


def holes(n: int = 40, seed: int = 2) -> np.ndarray:
    """(n, 3): which modalities rows have; at least one."""
    rng = np.random.default_rng(seed)
    present = rng.random((n, 3)) < 0.6
    present[np.arange(n), rng.integers(0, 3, n)] = True
    return present


def tensors(z: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.nan_to_num(array)).to(dtype) for name, array in z.items()}


def about(n: int) -> dict[str, Any]:
    """What is known of n rows."""
    return {
        "ids": [f"r{i}" for i in range(n)],
        "split": [["train", "train", "val", "train", "test"][i % 5] for i in range(n)],
        "labels": [["dog", "cat", "bird"][i % 3] for i in range(n)],
        "text": [f"caption {i % 17}" for i in range(n)],
        "columns": {"year": [1900 + i for i in range(n)]},
    }


def write_rows(path: str | Path, n: int = 90, seed: int = 0, dtype: str = "float32", **changes: Any) -> Path:
    """A feature directory of `rows` that are known as in `about`."""
    z, present = rows(n, seed, dtype=dtype)
    write_features(path, z, present, **(about(n) | changes))
    return Path(path)


def features(folder: Path, n: int = 24, dtype: str = "float32") -> FeatureSet:
    """A feature set of two modalities, one of them called text."""
    z, present = rows(n, 3, {"image": 4, "text": 3}, dtype)
    write_features(folder, z, present, **about(n))
    return open_features(folder)
