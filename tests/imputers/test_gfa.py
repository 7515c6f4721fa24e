"""Group factor analysis: the bound that it climbs, and modalities with more columns than rows."""

import numpy as np
import pytest
import torch

from calmrl.errors import InputError
from calmrl.imputers import GFAImputer
from calmrl.imputers.gfa import expected_latents, pattern_groups, start_loadings
from tests.reference.latent import gfa_bound
from tests.support.latent_data import from_model, with_nan

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
    means, _, total = expected_latents(imputer.loadings_, rows, pattern_groups(torch.from_numpy(present)))
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


def test_it_stops_when_nothing_moves_or_after_so_many():
    z, present = from_model(n=40, widths=(4, 3), latents=1)
    assert GFAImputer(2, max_iter=3, tol=1e-12).fit(z, present).n_iter_ == 3
    early = GFAImputer(2, max_iter=500, tol=1e-2).fit(z, present).n_iter_
    late = GFAImputer(2, max_iter=500, tol=1e-3).fit(z, present).n_iter_
    assert 1 < early < late < 500


@pytest.mark.parametrize("options", [{"latent_dim": 0}, {"max_iter": 0}])
def test_numbers_that_must_be_positive(options):
    z, present = from_model(n=10)
    with pytest.raises(InputError, match="latent_dim and max_iter must be positive; got"):
        GFAImputer(**options).fit(z, present)
    assert GFAImputer(1, max_iter=1).fit(z, present).n_iter_ == 1


def test_guesses_and_deviations_row_by_row():
    """E[W] E[b | observed] + mu, and sqrt(w V w + <Cov(w), V + m m^T> + 1 / tau)."""
    z, present = from_model(n=30, widths=(4, 3, 2), latents=2)
    imputer = GFAImputer(3, max_iter=5, tol=1e-12).fit(z, present)
    filled, std = imputer.impute(z, present, return_std=True)
    parts = [{key: value.numpy() for key, value in vars(part).items()} for part in imputer.loadings_]
    for i in range(30):
        precision, pull = np.eye(3), np.zeros(3)
        for m, values in enumerate(z.values()):
            if present[i, m]:
                p = parts[m]
                for d in range(len(p["mean"])):
                    w, tau = p["W"][d], p["precision"][d]
                    precision += tau * (np.outer(w, w) + p["covariance"][d])
                    pull += tau * w * (values[i, d] - p["mean"][d])
        V = np.linalg.inv(precision)
        mean = V @ pull
        for m, name in enumerate(z):
            if present[i, m]:
                continue
            p = parts[m]
            np.testing.assert_allclose(filled[name][i], p["W"] @ mean + p["mean"])
            second = V + np.outer(mean, mean)
            variance = [
                w @ V @ w + (c * second).sum() + 1 / t
                for w, c, t in zip(p["W"], p["covariance"], p["precision"], strict=True)
            ]
            np.testing.assert_allclose(std[name][i], np.sqrt(variance))


def test_the_start_explains_half_of_the_variance():
    block = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 300)) * 3 + 2)
    start = start_loadings(block, 5, torch.Generator().manual_seed(0))
    torch.testing.assert_close(start.mean, block.mean(0))
    torch.testing.assert_close(start.precision, 2 / block.var(0, correction=0))
    assert float((start.W.square().sum(1) / block.var(0)).mean()) == pytest.approx(0.5, rel=0.05)
    assert start.covariance.shape == (300, 5, 5)
    assert not start.covariance.any()
    assert start.relevance.tolist() == [1.0] * 5
    never = start_loadings(block[:0], 5, torch.Generator())
    assert not never.W.any()
    assert not never.mean.any()
    assert torch.isfinite(never.precision).all()
