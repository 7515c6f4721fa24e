"""Group factor analysis: the bound that it climbs, and modalities with more columns than rows."""

import numpy as np
import torch

from calmrl.imputers import GFAImputer
from calmrl.imputers.gfa import _groups, _latents
from latent_data import from_model, with_nan
from reference.latent import gfa_bound

USES = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])  # factor x modality


def wide(seed=0, n=60, width=200):
    """(z, present): factors of one, two and three modalities, and a fifth of the rows of each modality hidden."""
    rng = np.random.default_rng(seed)
    b = rng.normal(size=(n, len(USES)))
    z = {}
    for j in range(3):
        loadings = rng.normal(size=(len(USES), width))
        z[f"m{j}"] = (b * USES[:, j]) @ loadings + 0.7 * rng.normal(size=(n, width))
    present = np.ones((n, 3), dtype=bool)
    for j in range(3):
        present[rng.choice(n, n // 5, replace=False), j] = False
    present[~present.any(axis=1)] = True
    return z, present


def moments(imputer, z, present):
    """The diagonal of E[b b^T], on average over the rows."""
    rows = [torch.from_numpy(np.where(present[:, [j]], block, 0.0)) for j, block in enumerate(z.values())]
    means, _, total = _latents(imputer.loadings_, rows, _groups(torch.from_numpy(present)))
    return (means.square().sum(0) + total.diagonal()) / len(means)


def test_an_iteration_never_lowers_the_bound():
    z, present = from_model(n=25, widths=(4, 3, 2), latents=2)
    bounds = []
    for iterations in range(1, 12):
        imputer = GFAImputer(3, max_iter=iterations, tol=1e-12).fit(z, present)
        bounds.append(gfa_bound(imputer.loadings_, list(z.values()), present))
    assert (np.diff(bounds) > -1e-8).all(), bounds


def test_factors_have_the_scale_of_their_prior_in_wide_modalities():
    z, present = wide()
    imputer = GFAImputer(8, max_iter=50).fit(with_nan(z, present))
    assert (moments(imputer, z, present) - 1).abs().max() < 0.2  # a factor that fades out is still on its way


def test_wide_modalities_are_imputed_better_than_by_the_mean():
    z, present = wide()
    holes = with_nan(z, present)
    filled = GFAImputer(8, max_iter=50).fit_transform(holes)
    error = mean_error = 0.0
    for j, name in enumerate(z):
        hidden = ~present[:, j]
        error += np.square(filled[name] - z[name])[hidden].sum()
        mean_error += np.square(np.nanmean(holes[name], axis=0) - z[name])[hidden].sum()
    assert error < 0.6 * mean_error
