"""Small data for the tests of the aligner."""

from __future__ import annotations

import numpy as np

from tests.support.latent_data import random_present

WIDTHS = (12, 10, 8)
FAST = {"features": "linear", "unit_rows": False, "whitening": 0.5, "latent_dim": 6, "prior": 30.0, "refine": "never"}
KERNEL = {**FAST, "features": "kernel", "unit_rows": True}


def linear_rows(seed=0, n=240, widths=WIDTHS, latents=4, noise=0.5, rate=0.3):
    """(z, present): every modality shows the same latents, mixed with noise; holes hold NaN."""
    rng = np.random.default_rng(seed)
    beta = rng.normal(size=(n, latents))
    z = {
        f"m{j}": beta @ rng.normal(size=(latents, width)) + rng.normal(size=width) + noise * rng.normal(size=(n, width))
        for j, width in enumerate(widths)
    }
    present = random_present(rng, n, len(widths), rate)
    return {name: np.where(present[:, [j]], a, np.nan) for j, (name, a) in enumerate(z.items())}, present
