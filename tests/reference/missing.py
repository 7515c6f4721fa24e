"""Hiding blocks completely at random, one step after the other."""

from __future__ import annotations

import numpy as np


def mcar(n: int, k: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Keep one modality per row uniformly; choose round(rate * n * k) of the other slots without replacement."""
    keep = rng.integers(0, k, size=n)
    others = [row * k + column for row in range(n) for column in range(k) if column != keep[row]]
    mask = np.ones((n, k), dtype=bool)
    for slot in rng.choice(others, size=round(rate * n * k), replace=False):
        mask[slot // k, slot % k] = False
    return mask
