"""Small data for the tests of the latent model."""

from __future__ import annotations

import warnings

import numpy as np

from calmrl import GaussianImputer


def random_present(rng, n, k, rate=0.4):
    """Holes at random; every row keeps one modality, every modality some rows, and all are linked by a few full rows."""
    present = rng.random((n, k)) > rate
    present[np.arange(n), rng.integers(0, k, n)] = True
    present[: min(3, n)] = True
    return present


def from_model(seed=0, n=400, widths=(6, 5, 4), latents=2, noise=0.3, rate=0.4):
    """(z, present): rows of a linear-Gaussian model with holes; values under the holes are the truth."""
    rng = np.random.default_rng(seed)
    beta = rng.normal(size=(n, latents))
    z = {}
    for j, width in enumerate(widths):
        loadings = rng.normal(size=(latents, width))
        z[f"m{j}"] = beta @ loadings + rng.normal(size=width) + noise * (1 + j) * rng.normal(size=(n, width))
    return z, random_present(rng, n, len(widths), rate)


def torn(seed=0, holes=0.25, **data):
    """(z with NaN, truth): rows of a linear-Gaussian model that lack modalities and single entries; a few rows are whole."""
    truth, present = from_model(seed, **data)
    rng = np.random.default_rng(seed + 1)
    z = with_nan(truth, present)
    for j, array in enumerate(z.values()):
        gone = rng.random(array.shape) < holes
        gone[np.arange(len(array)), rng.integers(0, array.shape[1], len(array))] = False
        gone[:8] = False
        array[gone & present[:, [j]]] = np.nan
    return z, truth


def stacked(z):
    return np.concatenate(list(z.values()), axis=1)


def with_nan(z, present):
    return {name: np.where(present[:, [j]], array, np.nan) for j, (name, array) in enumerate(z.items())}


def fitted(z, K=1, noise="isotropic", **options):
    """A Gaussian imputer after a few steps, whether or not it has converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GaussianImputer(2, n_components=K, noise=noise, **{"max_iter": 12, "tol": 0.0, **options}).fit(z)


def normalised_error(filled, z, hidden):
    """Squared error of hidden blocks; 1.0 is that of the column means."""
    wrong = sum(((filled[n] - a)[hidden[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))
    return wrong / sum(((a - a.mean(0))[hidden[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))
