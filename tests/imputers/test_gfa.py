"""Group factor analysis: the bound that it climbs, and modalities with more columns than rows."""

import numpy as np
import pytest
import torch

from calmrl.errors import InputError
from calmrl.imputers import GFAImputer
from calmrl.imputers.gfa import (
    Loadings,
    expected_latents,
    pattern_groups,
    rescaled_relevance,
    start_loadings,
    torn_latents,
    update_loadings,
)
from tests.reference.latent import gfa_bound
from tests.support.latent_data import from_model, stacked, torn, with_nan


def test_an_iteration_never_lowers_the_bound():
    z, present = from_model(n=25, widths=(4, 3, 2), latents=2)
    bounds = []
    for iterations in range(1, 12):
        imputer = GFAImputer(3, max_iter=iterations, tol=1e-12).fit(z, present)
        bounds.append(gfa_bound(imputer.loadings_, list(z.values()), present))
    assert (np.diff(bounds) > -1e-8).all(), bounds


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


@pytest.mark.parametrize("holes", [False, True])
def test_guesses_and_deviations_row_by_row(holes):
    """E[W] E[b | observed] + mu, and sqrt(w V w + <Cov(w), V + m m^T> + 1 / tau)."""
    data = {"n": 30, "widths": (4, 3, 2), "latents": 2}
    z = torn(**data)[0] if holes else with_nan(*from_model(**data))
    imputer = GFAImputer(3, max_iter=5, tol=1e-12).fit(z)
    filled, std = (stacked(part) for part in imputer.impute(z, return_std=True))
    parts = [vars(part) for part in imputer.loadings_]
    mu, W, cov, tau = (torch.cat([p[key] for p in parts]).numpy() for key in ("mean", "W", "covariance", "precision"))
    for i, row in enumerate(stacked(z)):
        at = ~np.isnan(row)
        outer = np.einsum("dj,dk->djk", W, W) + cov
        V = np.linalg.inv(np.eye(3) + np.tensordot(tau[at], outer[at], axes=1))
        mean = V @ W[at].T @ (tau[at] * (row[at] - mu[at]))
        variance = np.einsum("dj,jk,dk->d", W, V, W) + np.tensordot(cov, V + np.outer(mean, mean)) + 1 / tau
        np.testing.assert_allclose(filled[i, ~at], (W @ mean + mu)[~at])
        np.testing.assert_allclose(std[i, ~at], np.sqrt(variance)[~at])


# ---- one step


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def some_loadings(width=3, latents=2, seed=0):
    spread = draw(width, latents, latents, seed=seed + 1)
    precision, relevance = draw(width, seed=seed + 2).exp(), draw(latents, seed=seed + 3).exp()
    W, mean = draw(width, latents, seed=seed), draw(width, seed=seed + 4)
    return Loadings(mean, W, 0.1 * spread @ spread.mT, precision, relevance)


def test_one_update_of_a_modality():
    part, block, means = some_loadings(), draw(20, 3, seed=7) + 2, draw(20, 2, seed=8)
    covariances = 20 * torch.tensor([[0.5, 0.1], [0.1, 0.4]], dtype=torch.float64)
    before = Loadings(*(t.clone() for t in vars(part).values()))
    change = update_loadings(part, block, means, covariances)
    second = sum(torch.outer(b, b) for b in means) + covariances
    variances, strength = [], torch.zeros(2, dtype=torch.float64)
    for d in range(3):
        tau, centred = before.precision[d], block[:, d] - before.mean[d]
        cov = torch.linalg.inv(torch.diag(before.relevance) + tau * second)
        w = tau * cov @ (centred[:, None] * means).sum(0)
        mean = before.mean[d] + (centred - means @ w).mean()
        left = block[:, d] - mean
        expected = (left.square() - 2 * left * (means @ w)).sum() + w @ second @ w + (cov * second).sum()
        torch.testing.assert_close(part.covariance[d], cov)
        torch.testing.assert_close(part.W[d], w)
        torch.testing.assert_close(part.mean[d], mean)
        torch.testing.assert_close(part.precision[d], 20 / expected)
        variances.append(20 / expected)
        strength += w.square() + cov.diagonal()
    torch.testing.assert_close(part.relevance, 3 / strength)
    assert change == pytest.approx(max(abs(float(v / p) - 1) for v, p in zip(variances, before.precision, strict=True)))


def test_noise_and_relevance_have_limits():
    part = some_loadings()
    part.mean, block = torch.full((3,), 2.0).double(), torch.full((20, 3), 2.0).double()
    part.W.zero_()
    update_loadings(part, block, torch.zeros(20, 2).double(), torch.zeros(2, 2).double())
    torch.testing.assert_close(
        part.precision, torch.full((3,), 1 / 5e-14).double()
    )  # 1e-14 (1 + mean square of the mean)
    part.relevance = torch.full((2,), 1e13).double()
    update_loadings(part, block, torch.zeros(20, 2).double(), torch.zeros(2, 2).double())
    torch.testing.assert_close(part.relevance, torch.full((2,), 1e12).double())
    start = start_loadings(torch.tensor([[1.0, 0.0], [1.0, 4.0]]).double(), 1, torch.Generator())
    floor = 1e-8 * 2 + 1e-14 * (1 + 2.5)
    torch.testing.assert_close(start.precision, torch.tensor([1 / floor, 0.5]).double())
    assert start.W[0].tolist() == [0.0]
    torch.testing.assert_close(rescaled_relevance(torch.tensor([8.0]), torch.tensor([2.0])), torch.tensor([2.0]))


def test_factors_from_single_entries_are_those_of_whole_rows_where_all_are_seen():
    parts, rows = [some_loadings(3), some_loadings(4, seed=20)], [draw(9, 3, seed=5), draw(9, 4, seed=6)]
    seen = [torch.ones_like(block) for block in rows]
    means, second = torn_latents(parts, rows, seen)
    want, sums, _ = expected_latents(parts, rows, pattern_groups(torch.ones(9, 2, dtype=torch.bool)))
    torch.testing.assert_close(means, want)
    torn, whole = some_loadings(3), some_loadings(3)
    changes = [update_loadings(torn, rows[0], means, second, seen[0]), update_loadings(whole, rows[0], want, sums[0])]
    assert changes[0] == pytest.approx(changes[1])
    for ours, theirs in zip(vars(torn).values(), vars(whole).values(), strict=True):
        torch.testing.assert_close(ours, theirs)
