"""Three modalities that share two factors; some rows lack one."""

import numpy as np


def three(n=60):
    """(z, present) of n rows, a bent map of the factors and noise in each modality."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(n, 2))
    z = {name: np.tanh(shared @ rng.normal(size=(2, 4))) + 0.2 * rng.normal(size=(n, 4)) for name in "abc"}
    present = np.ones((n, 3), bool)
    present[::3, 1] = False
    present[1::6, 2] = False
    return z, present
