"""Small data for the tests of the baselines."""

from __future__ import annotations

import numpy as np


def rows_of(seed=0, n=60, widths=(5, 4, 6), latents=3, rate=0.3):
    """(z, present): every modality shows the same latents with noise; some rows have all."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, latents))
    x = [shared @ rng.normal(size=(latents, d)) + 0.7 * rng.normal(size=(n, d)) for d in widths]
    present = rng.random((n, len(widths))) > rate
    present[np.arange(n), rng.integers(len(widths), size=n)] = True
    present[:8] = True
    return {f"m{j}": side for j, side in enumerate(x)}, present


def scores(vectors):
    """Cosines of rows of two modalities."""
    a, b = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    return a @ b.T
