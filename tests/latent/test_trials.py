"""One trial of the search, the mixture that starts from one component, and where EM stands on disk."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers.gradient import GaussianLatent
from calmrl.latent import em as mixture
from calmrl.latent import held_out as trials
from calmrl.latent.em import (
    Checkpoint,
    EMState,
    Settings,
    component_prior,
    fit_settings,
    noise_floor,
    split,
    start_at_random,
)
from calmrl.latent.held_out import Trials
from calmrl.latent.model import random_parameters
from calmrl.latent.rows import open_source
from tests.support.latent_data import from_model


def ended(monkeypatch, errors, base=None):
    """(error, steps, parameters) of a trial with these errors after each step, and how many steps it made."""
    made = []

    def fit(source, settings, *, base, seed, max_iter, tol, after_step):
        assert (source, seed, max_iter, tol) == ("visible rows", 4, 20, 1e-5)
        for step in range(1, len(errors) + 1):
            made.append(step)
            if after_step(step, f"params {step}", 0.0):
                break

    monkeypatch.setattr(trials, "fit_settings", fit)
    monkeypatch.setitem(trials.CRITERIA, "imputation", lambda held, params: errors[int(params.split()[1]) - 1])
    held = SimpleNamespace(source="visible rows")
    return Trials(held, "imputation", 4, 20).run(Settings(2), base), len(made)


def test_a_trial_ends_three_steps_after_its_best(monkeypatch):
    found, made = ended(monkeypatch, [9, 8, 7, 6, 7, 8, 9, 4])
    assert found == (6, 4, "params 4")
    assert made == 7
    found, made = ended(monkeypatch, [9, 8, 7, 6, 7, 8])
    assert (found[1], made) == (4, 6)


def test_the_first_steps_from_a_random_start_are_not_judged(monkeypatch):
    errors = [1, 2, 8, 7, 9, 9, 9, 9]
    assert ended(monkeypatch, errors) == ((7, 4, "params 4"), 7)
    assert ended(monkeypatch, errors, base="one component") == ((1, 1, "params 1"), 2)  # it rose
    assert ended(monkeypatch, [3, 1, 5]) == ((5, 3, "params 3"), 3)
    assert ended(monkeypatch, [3, 1]) == ((1, 2, "params 2"), 2)  # it ended before: the last one


def test_a_mixture_ends_where_its_error_rises_and_any_trial_where_it_hardly_falls(monkeypatch):
    rising = [2.0, 2.009, 2.02, 1.0]
    assert ended(monkeypatch, rising, base="one component") == ((2.0, 1, "params 1"), 3)  # by more than half a percent
    falling = [9, 8, *(2 - 0.0003 * step for step in range(20))]
    assert ended(monkeypatch, falling)[1] == 8  # five steps from the first that is judged
    assert ended(monkeypatch, [9, 8, *(2 - 0.001 * step for step in range(20))])[1] == 22


def source(n=60, seed=0):
    z, present = from_model(n=n, seed=seed)
    return open_source(z, present)


def test_a_random_start_explains_half_of_the_variance():
    rows = source(n=60)
    variance = [v * 0 + 3.0 for v in rows.variance]
    start = random_parameters(rows.names, rows.mean, variance, 500, torch.Generator().manual_seed(0))
    for W, noise, mu, mean in zip(start.W, start.noise, start.mu, rows.mean, strict=True):
        torch.testing.assert_close(W.square().sum(2)[0], torch.full_like(mean, 1.5), rtol=0.2, atol=0)
        torch.testing.assert_close(noise[0], torch.full_like(mean, 1.5))
        torch.testing.assert_close(mu[0], mean)
    assert start.log_weight.tolist() == [0.0]


def test_a_modality_that_no_row_has_starts_at_nothing():
    z, present = from_model(n=30)
    present[:, 1] = False
    present[:, 0] = True
    start = start_at_random(open_source(z, present), 2, 0)
    assert not start.W[1].any()
    assert start.W[0].any()


@pytest.mark.parametrize(("dtype", "relative"), [(np.float32, 1e-5), (np.float64, 1e-8)])
def test_the_smallest_noise(dtype, relative):
    z, present = from_model(n=30)
    rows = open_source({name: values.astype(dtype) for name, values in z.items()}, present)
    for floor, variance, mean in zip(noise_floor(rows), rows.variance, rows.mean, strict=True):
        torch.testing.assert_close(floor, relative * variance.mean() + 1e-14 * (1 + mean.square().mean()))


def test_steps_of_a_fit_with_given_settings():
    rows = source()
    options = {"seed": 0, "max_iter": 9, "tol": 0.0}
    assert len(fit_settings(rows, Settings(2), **options).objective) == 9
    assert len(fit_settings(rows, Settings(2, iterations=4), **options).objective) == 4
    seen = []
    settings = Settings(2, 2, base_iterations=3, iterations=5)
    fit = fit_settings(rows, settings, **options, after_step=lambda step, params, _: seen.append(params.n_components))
    assert len(fit.objective) == 5
    assert seen == [2] * 5  # the one component that it starts from is not watched
    assert fit.params.n_components == 2


def test_components_are_centred_on_clusters():
    rows = source(n=80)
    base = fit_settings(rows, Settings(2), seed=0, max_iter=5, tol=0.0).params
    made = split(rows, base, 3, 0)
    assert made.n_components == 3
    assert float(made.log_weight.exp().sum()) == pytest.approx(1)
    for m in range(3):
        for c in range(3):
            assert torch.equal(made.W[m][c], base.W[m][0])
            assert torch.equal(made.noise[m][c], base.noise[m][0])
    shifts = [torch.linalg.lstsq(base.W[0][0], (made.mu[0][c] - base.mu[0][0])[:, None]).solution for c in range(3)]
    for m in range(1, 3):
        for c in range(3):
            torch.testing.assert_close(made.mu[m][c] - base.mu[m][0], (base.W[m][0] @ shifts[c])[:, 0])
    with pytest.raises(InputError, match="n_components=81 needs at least as many rows; got 80"):
        split(rows, base, 81, 0)
    assert split(source(n=5), base, 5, 0).n_components == 5


@pytest.mark.parametrize(("most", "taken"), [(80, 80), (40, 40), (26, 27), (1000, 80)])
def test_clusters_are_looked_for_in_a_sample(monkeypatch, most, taken):
    z, _ = from_model(n=80)
    rows = open_source(z, np.ones((80, 3), bool))
    base = fit_settings(rows, Settings(2), seed=0, max_iter=2, tol=0.0).params
    monkeypatch.setattr(mixture, "SAMPLE_ROWS", most)
    assert len(mixture._sample_means(rows, base)) == taken


@pytest.mark.parametrize(("strength", "noise"), [(0.0, 1.0), (0.5, 1.0), (7.0, 7.0)])
def test_components_lean_on_what_is_shared(strength, noise):
    rows = source()
    base = fit_settings(rows, Settings(2), seed=0, max_iter=2, tol=0.0).params
    prior = component_prior(base, strength, noise_floor(rows))
    assert (prior.loading, prior.mean, prior.noise, prior.weight) == (strength, 1.0, noise, 1.0)
    assert all(torch.equal(centre, W[0]) for centre, W in zip(prior.centre, base.W, strict=True))
    assert all(torch.equal(scale, one[0]) for scale, one in zip(prior.scale, base.noise, strict=True))


def test_where_em_stands_is_kept(tmp_path):
    rows = source()
    start = start_at_random(rows, 2, 0)
    later = fit_settings(rows, Settings(2), seed=0, max_iter=3, tol=0.0).params
    checkpoint = Checkpoint(tmp_path, start, {"tol": 1e-3})
    assert checkpoint.load() is None
    checkpoint.save(EMState(later, None, start, True, [1.0, 2.0]))
    state = Checkpoint(tmp_path, start, {"tol": 1e-3}).load()
    assert state.fallback is None
    assert (state.accelerate, state.objective) == (True, [1.0, 2.0])
    checkpoint.save(EMState(later, start, later, False, [1.0, 2.0, 3.0]))
    state = checkpoint.load()
    assert (state.accelerate, state.objective) == (False, [1.0, 2.0, 3.0])
    for part, params in ((state.params, later), (state.fallback, start), (state.best, later)):
        assert part.names == params.names
        assert torch.equal(part.log_weight, params.log_weight)
        for kind in ("W", "mu", "noise"):
            assert all(map(torch.equal, getattr(part, kind), getattr(params, kind)))
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.file.name]
    assert Checkpoint(tmp_path, start, {"tol": 1e-2}).load() is None
    assert Checkpoint(tmp_path, later, {"tol": 1e-3}).load() is None


def test_noise_of_the_module():
    z, present = from_model(n=60)
    params = GaussianImputer(2, noise="diagonal", max_iter=5, tol=1e-1).fit(z, present).parameters_
    means = [noise.mean() for noise in params.noise]
    for options, wanted in (
        ({"isotropic": False}, params.noise),
        ({}, means),
        ({"floor": [mean / 2 for mean in means]}, means),
        ({"floor": [2 * mean for mean in means]}, [2.001 * mean for mean in means]),  # pushed above it
    ):
        for mine, theirs in zip(GaussianLatent(params, **options).as_parameters().noise, wanted, strict=True):
            torch.testing.assert_close(mine, theirs.expand_as(mine))


def test_no_rows_have_no_likelihood_but_a_gradient():
    z, present = from_model(n=60)
    latent = GaussianLatent(GaussianImputer(2, max_iter=2, tol=1.0).fit(z, present).parameters_)
    value = latent({name: torch.zeros(0, a.shape[1]).double() for name, a in z.items()}, torch.ones(0, 3).bool())
    assert value == 0
    value.backward()
    one = {name: torch.from_numpy(a[:1]) for name, a in z.items()}
    two = {name: torch.from_numpy(np.repeat(a[:1], 2, 0)) for name, a in z.items()}
    torch.testing.assert_close(latent(one, torch.ones(1, 3).bool()), latent(two, torch.ones(2, 3).bool()))
