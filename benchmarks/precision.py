"""Does `Aligner.embed` depend on the dtype of its input or on how many rows come at once?

The same values are embedded in float64, float32 and float16 (which hold them exactly), whole and row by row, from either
modality and from both. `ratio` is the largest difference of an entry of a unit vector, with and without `unit_rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

from calmrl import Aligner

WIDTHS = (1, 2, 4, 8, 16, 32)
WHITENING = (0.0, 0.5, 1.0)
TRAIN, NEW = 300, 100
LIMIT = 1e-4


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    collections = [(f"width {width}", _simulated(width)) for width in WIDTHS]
    collections.append(("breast cancer, two blocks of 5", _measured(5)))
    return [
        _row(f"{name}, {features}, whitening {whitening:g}", z, features, whitening)
        for features in ("linear", "kernel")
        for whitening in WHITENING
        for name, z in collections
    ]


def _row(case: str, z: dict[str, np.ndarray], features: str, whitening: float) -> dict[str, Any]:
    single, half, alone = np.max([_differences(z, features, unit, whitening) for unit in (True, False)], axis=0)
    note = f"float32 {single:.1e}, float16 {half:.1e}, one by one {alone:.1e}"
    worst = max(single, half, alone)
    return {"case": case, "ours_s": None, "theirs_s": None, "ratio": worst, "target": f"<= {LIMIT:g}", "note": note}


def _differences(z: dict[str, np.ndarray], features: str, unit: bool, whitening: float) -> tuple[float, float, float]:
    """(float32, float16, one by one in float32): largest difference to float64, or to all rows at once."""
    aligner = Aligner(features, unit, whitening, latent_dim=16, prior=10.0, refine="never")
    aligner.fit({name: a[:TRAIN] for name, a in z.items()})
    single, half, alone = [0.0], [0.0], [0.0]
    for names in (["a"], ["b"], ["a", "b"]):
        new = {name: z[name][TRAIN : TRAIN + NEW].astype(np.float16) for name in names}
        whole, in_single, in_half = (
            aligner.embed({name: a.astype(dtype) for name, a in new.items()}).astype(np.float64)
            for dtype in (np.float64, np.float32, np.float16)
        )
        rows = [{name: a[i : i + 1].astype(np.float32) for name, a in new.items()} for i in range(NEW)]
        single.append(np.abs(in_single - whole).max())
        half.append(np.abs(in_half - whole).max())
        alone.append(np.abs(np.concatenate([aligner.embed(row) for row in rows]) - in_single).max())
    return max(single), max(half), max(alone)


def _simulated(width: int) -> dict[str, np.ndarray]:
    """Two bent views of four shared numbers."""
    rng = np.random.default_rng(width)
    shared = rng.normal(size=(TRAIN + NEW, 4))
    return {
        name: np.tanh(shared @ rng.normal(size=(4, width))) + 0.1 * rng.normal(size=(len(shared), width))
        for name in ("a", "b")
    }


def _measured(width: int) -> dict[str, np.ndarray]:
    values = load_breast_cancer().data[np.random.default_rng(0).permutation(569)]
    values = (values - values.mean(0)) / values.std(0)
    return {"a": values[:, :width], "b": values[:, width : 2 * width]}
