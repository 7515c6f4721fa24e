"""The M-step: the prior by its formula, and parameters at which the objective has no slope left."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calmrl import GaussianImputer
from calmrl.anchors import anchor
from calmrl.latent.em import (
    Prior,
    Settings,
    component_prior,
    expected_statistics,
    fit_settings,
    maximise,
    noise_floor,
    run_em,
    single_prior,
    split,
    start_at_random,
)
from calmrl.latent.model import Parameters
from calmrl.latent.rows import open_source
from calmrl.latent.statistics import Statistics
from tests.support.latent_data import from_model


def parameters(K=2, widths=(3, 2), L=2):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5

    W, mu, noise = ([draw(K, d, *more) for d in widths] for more in ((L,), (), ()))
    return Parameters(("a", "b"), W, mu, noise, draw(K).log_softmax(0))


@pytest.mark.parametrize("centred", [False, True])
def test_density_of_the_prior(centred):
    params = parameters()
    scale = [torch.full((d,), 0.7, dtype=torch.float64) for d in params.widths]
    centre = [torch.full((d, 2), 0.2, dtype=torch.float64) for d in params.widths] if centred else None
    prior = Prior(loading=3.0, mean=2.0, noise=5.0, weight=4.0, scale=scale, floor=scale, centre=centre)
    total = 4.0 * float(params.log_weight.sum())
    for m in range(2):
        for c in range(2):
            for d in range(params.widths[m]):
                away = params.W[m][c, d] - (0.2 if centred else 0.0)
                noise = float(params.noise[m][c, d])
                penalty = 3 * float(away @ away) + 2 * float(params.mu[m][c, d]) ** 2 + 5 * 0.7
                total -= 0.5 * (penalty / noise + 5 * np.log(noise))
    assert prior.log_density(params) == pytest.approx(total)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize(("rows", "K"), [(0.0, 1), (20.0, 1), (0.0, 2), (7.0, 2)])
def test_the_expected_objective_has_no_slope_at_the_maximum(rows, K, isotropic):
    """Its derivative by every parameter, from sums over rows as the text defines them, vanishes."""
    z, present = from_model(n=80, widths=(4, 3, 2))
    source = open_source(z, present)
    floor = noise_floor(source)
    old = fit_settings(source, Settings(2), seed=0, max_iter=3, tol=0.0).params
    prior = single_prior(rows, source.variance, floor)
    if K == 2:
        prior, old = component_prior(old, rows, floor), split(source, old, 2, 0)
    stats = expected_statistics(source, old)
    new = maximise(stats, old, prior, m_step="joint", isotropic=isotropic)
    parts = [[t.clone().requires_grad_() for t in part] for part in (new.W, new.mu, new.noise)]
    if isotropic:
        parts[2] = [noise.detach()[:, :1].clone().requires_grad_() for noise in new.noise]
    W, mu, noise = parts
    total = torch.zeros((), dtype=torch.float64)
    for m in range(3):
        w, u = W[m], mu[m]
        n = noise[m].expand(u.shape)
        lean = w if prior.centre is None else w - prior.centre[m]
        square = (
            stats.z2[m]
            - 2 * (w * stats.zm[m]).sum(2)
            - 2 * u * stats.z1[m]
            + torch.einsum("kdl,klj,kdj->kd", w, stats.m2[m], w)
            + 2 * u * (w @ stats.m1[m][..., None])[..., 0]
            + stats.n[m][:, None] * u**2
        )
        square = square + prior.loading * lean.square().sum(2) + prior.mean * u**2 + prior.noise * prior.scale[m]
        total = total - 0.5 * (square / n + (stats.n[m][:, None] + prior.noise) * n.log()).sum()
    for gradient in torch.autograd.grad(total, [*W, *mu, *noise]):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-6)
    weight = stats.rows + prior.weight
    torch.testing.assert_close(new.log_weight.exp(), weight / weight.sum())


def test_noise_has_a_floor_and_what_was_never_seen_stays():
    z, present = from_model(n=80, widths=(4, 3, 2))
    present[:, 2] = False
    present[:, 0] |= ~present.any(1)
    source = open_source(z, present)
    old = start_at_random(source, 2, 0)
    floor = [torch.tensor(9.0, dtype=torch.float64)] * 3
    prior = single_prior(0.0, source.variance, floor)
    new = maximise(expected_statistics(source, old), old, prior, m_step="joint", isotropic=True)
    assert (new.noise[0] == 9).all()
    for kind in ("W", "mu", "noise"):
        assert torch.equal(getattr(new, kind)[2], getattr(old, kind)[2])


def test_when_em_stops():
    z, present = from_model(n=80, widths=(4, 3, 2))
    source = open_source(z, present)
    start, floor = start_at_random(source, 2, 0), noise_floor(source)
    prior = single_prior(10.0, source.variance, floor)
    full = run_em(source, start, prior, max_iter=60, tol=0.0)
    assert (np.diff(full.objective) >= 0).all()
    gains = np.diff(full.objective[:12])
    for place, gain in enumerate(gains[2:8], start=2):
        limit = gain / max(1.0, abs(full.objective[place + 1]))
        if gains[:place].min() > gain:  # the first gain that is so small ends it
            fit = run_em(source, start, prior, max_iter=60, tol=1.0001 * limit)
            assert (len(fit.objective), fit.converged) == (place + 2, True)
            assert len(run_em(source, start, prior, max_iter=60, tol=0.999 * limit).objective) > place + 2
    short = run_em(source, start, prior, max_iter=3, tol=0.0)
    assert (len(short.objective), short.converged) == (3, False)
    assert short.objective == full.objective[:3]
    seen = []
    stopped = run_em(source, start, prior, tol=0.0, after_step=lambda step, *_: seen.append(step) or step == 2)
    assert seen == [1, 2]
    assert len(stopped.objective) == 2
    assert not stopped.converged


def test_an_imputer_from_parameters():
    z, present = from_model(n=80, widths=(3, 3))
    fitted = GaussianImputer(2, max_iter=5, tol=1e-1).fit(z, present)
    made = GaussianImputer.from_parameters(fitted.parameters_)
    tensors, mask = {name: torch.from_numpy(a) for name, a in z.items()}, torch.from_numpy(present)
    for name, values in made.transform(tensors, mask).items():
        np.testing.assert_array_equal(values.numpy(), fitted.transform(z, present)[name])
    anchors = [anchor(fitted.transform({name: z[name]})) for name in z]
    found = fitted.similarity({"m0": z["m0"]}, {"m1": z["m1"]}, "anchor")
    np.testing.assert_allclose(found, anchors[0] @ anchors[1].T, atol=1e-12)


@pytest.mark.filterwarnings("ignore:EM used all")
@pytest.mark.parametrize("options", [{"solver": "stepwise", "batch_size": 20}, {"solver": "em"}], ids=str)
def test_small_values_are_imputed_as_large_ones(options):
    z, present = from_model(n=60)
    how = {"prior": 10.0, "max_iter": 4, "tol": 0.0, **options}
    whole = GaussianImputer(2, **how).fit(z, present).transform(z, present)
    tiny = {name: 0.01 * values for name, values in z.items()}
    found = GaussianImputer(2, **how).fit(tiny, present).transform(tiny, present)
    for name, values in whole.items():
        np.testing.assert_allclose(found[name], 0.01 * values, rtol=1e-3, atol=1e-5)


# ---- sums over rows that are moved, and in other latents


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


RESP = torch.softmax(draw(9, 2), dim=1)  # (rows, K)
HAS = torch.tensor([[True, True]] * 4 + [[True, False]] * 3 + [[False, True]] * 2)
Z = [draw(9, 3, seed=1), draw(9, 2, seed=2)]
MEANS = draw(9, 2, 4, seed=3)  # (rows, K, L)
V = [(a @ a.mT + torch.eye(4)) for a in draw(2, 4, 4, seed=4)]


def summed(z, means, covariance):
    """The definitions, row by row."""
    k, K, L = 2, 2, 4
    new = torch.zeros
    stats = Statistics(
        n=new(k, K), m1=new(k, K, L), m2=new(k, K, L, L), zm=[new(K, 3, L), new(K, 2, L)], z1=[new(K, 3), new(K, 2)],
        z2=[new(K, 3), new(K, 2)], rows=new(K), all1=new(K, L), all2=new(K, L, L), log_likelihood=new(()),
    )  # fmt: skip
    for tensor in stats.tensors():
        tensor.data = tensor.double()
    for i in range(9):
        for c in range(K):
            r, m = RESP[i, c], means[i, c]
            second = torch.outer(m, m) + covariance[c]
            stats.rows[c] += r
            stats.all1[c] += r * m
            stats.all2[c] += r * second
            for j in range(k):
                if HAS[i, j]:
                    stats.n[j, c] += r
                    stats.m1[j, c] += r * m
                    stats.m2[j, c] += r * second
                    stats.zm[j][c] += r * torch.outer(z[j][i], m)
                    stats.z1[j][c] += r * z[j][i]
                    stats.z2[j][c] += r * z[j][i] ** 2
    return stats


def assert_same(found, want):
    for mine, theirs in zip(found.tensors(), want.tensors(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_rows_that_are_moved():
    shift = [draw(3, seed=5), draw(2, seed=6)]
    moved = [z + s for z, s in zip(Z, shift, strict=True)]
    assert_same(summed(Z, MEANS, V).moved(shift), summed(moved, MEANS, V))


def test_other_latents():
    mean, chol = draw(2, 4, seed=7), torch.linalg.cholesky(torch.stack([v + torch.eye(4) for v in V]))
    back = torch.linalg.inv(chol)
    means = torch.einsum("cab,icb->ica", back, MEANS - mean)
    covariance = [b @ v @ b.T for b, v in zip(back, V, strict=True)]
    assert_same(summed(Z, MEANS, V).rebased(mean, chol), summed(Z, means, covariance))
