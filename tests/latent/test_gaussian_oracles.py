"""The latent model against other libraries and against its slow twins."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA, FactorAnalysis

from calmrl import GaussianImputer
from calmrl.latent.em import Prior, expected_statistics, maximise, noise_floor, start_at_random
from calmrl.latent.rows import open_source
from tests.reference import latent as slow
from tests.support.latent_data import fitted, from_model, normalised_error, random_present, stacked, torn, with_nan

TIGHT = {"max_iter": 3000, "tol": 1e-13}


FORMS = [(1, "isotropic"), (1, "diagonal"), (3, "isotropic"), (3, "diagonal")]
ROWS = {"whole": lambda n: with_nan(*from_model(n=n)), "with holes": lambda n: torn(n=n)[0]}
either = pytest.mark.parametrize("rows", ROWS)


def test_one_complete_modality_is_pca():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 3)) @ rng.normal(size=(3, 8)) + 0.5 * rng.normal(size=(300, 8)) + 4.0
    imp = GaussianImputer(3, **TIGHT).fit({"x": x})
    pca = PCA(3).fit(x)
    n = len(x)
    assert imp.sigma2_["x"] == pytest.approx(pca.noise_variance_ * (n - 1) / n, rel=1e-6)
    # the maximum of the likelihood, written with PCA's eigenvalues
    top = pca.explained_variance_ * (n - 1) / n
    rest = pca.noise_variance_ * (n - 1) / n
    best = -0.5 * (8 * np.log(2 * np.pi) + np.log(top).sum() + 5 * np.log(rest) + 8)
    assert imp.score({"x": x}) == pytest.approx(best, abs=1e-6)
    assert imp.log_likelihood_[-1] == pytest.approx(best, abs=1e-6)


def test_diagonal_noise_is_factor_analysis():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(400, 2)) @ rng.normal(size=(2, 10)) + rng.normal(size=(400, 10)) * np.linspace(0.5, 1.2, 10)
    imp = GaussianImputer(2, noise="diagonal", **TIGHT).fit({"x": x})
    oracle = FactorAnalysis(2, tol=1e-10, max_iter=5000, svd_method="lapack").fit(x)
    assert imp.score({"x": x}) == pytest.approx(oracle.score(x), abs=1e-6)


@either
@pytest.mark.parametrize(("K", "noise"), FORMS)
def test_prediction_is_dense_conditioning(rows, K, noise):
    z = ROWS[rows](60)
    model = fitted(z, K, noise)
    filled, std = model.impute(z, return_std=True)
    x, values, deviations = stacked(z), stacked(filled), stacked(std)
    likelihoods = model.score_samples(z)
    for i, row in enumerate(x):
        gone = np.isnan(row)
        mean, deviation, density = slow.condition_mixture(model.parameters_, row)
        np.testing.assert_allclose(values[i, gone], mean, atol=1e-8)
        np.testing.assert_allclose(deviations[i, gone], deviation, atol=1e-8)
        assert likelihoods[i] == pytest.approx(density, abs=1e-8)
    np.testing.assert_allclose(stacked(model.transform(z)), values, atol=1e-12)
    assert (values[~np.isnan(x)] == x[~np.isnan(x)]).all()
    assert (deviations[~np.isnan(x)] == 0).all()


@either
def test_posterior_and_full_covariance_are_dense_conditioning(rows):
    z = ROWS[rows](50)
    model = fitted(z)
    mean, covariance = model.posterior(z)
    np.testing.assert_allclose(model.embed(z), mean)
    for i, row in enumerate(stacked(z)):
        m, V = slow.posterior(model.parameters_, row)
        np.testing.assert_allclose(mean[i], m, atol=1e-9)
        np.testing.assert_allclose(covariance[i], V, atol=1e-9)
    others = ~np.isnan(z["m1"]).all(1) | ~np.isnan(z["m2"]).all(1)
    some = {name: array[others] for name, array in z.items()}
    got = model.predictive_covariance(some, "m0")
    for i, row in enumerate(stacked({**some, "m0": np.full_like(some["m0"], np.nan)})):
        wanted = slow.condition(*slow.joint(model.parameters_)[:2], row)[1]
        np.testing.assert_allclose(got[i], wanted[:6, :6], atol=1e-9)


@either
def test_likelihood_ratio_is_the_dense_one(rows):
    z = ROWS[rows](14)
    model = fitted(z)
    q, g = ({name: array[part] for name, array in z.items()} for part in (slice(0, 14, 2), slice(1, 14, 2)))
    want = slow.likelihood_ratio(model.parameters_, stacked(q), stacked(g))
    np.testing.assert_allclose(model.similarity(q, g, "likelihood_ratio"), want, atol=1e-8)


@either
@pytest.mark.parametrize("isotropic", [True, False])
def test_one_step_is_the_loop_over_rows(rows, isotropic):
    z = ROWS[rows](70)
    source = open_source(z, None, holes=True)
    assert source.torn == (rows == "with holes")
    start = start_at_random(source, 2, seed=0)
    prior = Prior(0.0, 0.0, 0.0, 0.0, source.variance, noise_floor(source))
    new = maximise(expected_statistics(source, start), start, prior, m_step="joint", isotropic=isotropic)
    centred = stacked(z) - torch.cat(source.mean).numpy()
    wanted = slow.em_step(start, centred, source.widths, isotropic)
    for kind, part in zip((new.W, new.mu, new.noise), wanted, strict=True):
        np.testing.assert_allclose(torch.cat(kind, dim=1)[0], part, atol=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(4, 40),
    widths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    latents=st.integers(1, 4),
    K=st.sampled_from([1, 1, 2, 3]),
    noise=st.sampled_from(["isotropic", "diagonal"]),
    m_step=st.sampled_from(["joint", "sequential"]),
    prior=st.sampled_from([0.0, 3.0]),
    accelerate=st.booleans(),
)
@pytest.mark.filterwarnings("ignore")
def test_objective_never_decreases(seed, n, widths, latents, K, noise, m_step, prior, accelerate):
    rng = np.random.default_rng(seed)
    z = {f"m{j}": rng.normal(size=(n, w)) @ rng.normal(size=(w, w)) for j, w in enumerate(widths)}
    present = random_present(rng, n, len(widths))
    imp = GaussianImputer(latents, K, noise, m_step, 12, 0.0, prior=prior, accelerate=accelerate).fit(z, present)
    history = np.array(imp.log_likelihood_)
    assert np.isfinite(history).all()
    assert (np.diff(history) >= 0).all()
    assert all(np.isfinite(a).all() for a in imp.transform(z, present).values())
    # rows that can be fitted exactly have no bounded likelihood: noise sinks to its floor, and the last step, which nothing
    # checks, is decided by rounding, of the order of 1e-16 (variance / noise)^2
    noise_share = min(np.min(imp.sigma2_[name]) / a[present[:, j]].var() for j, (name, a) in enumerate(z.items()))
    if K == 1 and prior == 0 and noise_share > 1e-4:
        assert imp.score(z, present) >= history[-1] - 1e-8 * abs(history[-1])


def test_close_to_the_bayes_optimum():
    rng = np.random.default_rng(0)
    n, d, L, sigma = 3000, 32, 8, (0.7, 0.9, 1.1)
    beta = rng.normal(size=(n, L))
    loadings = [rng.normal(size=(d, L)) / np.sqrt(L) for _ in sigma]
    z = {
        f"m{j}": beta @ W.T + s * rng.normal(size=(n, d)) for j, (W, s) in enumerate(zip(loadings, sigma, strict=True))
    }
    present = random_present(rng, n, 3)
    imp = GaussianImputer(L).fit(z, present)
    truth = GaussianImputer(L).fit(z, present)
    for m, (W, s) in enumerate(zip(loadings, sigma, strict=True)):
        truth.parameters_.W[m][0] = torch.tensor(W)
        truth.parameters_.mu[m].zero_()
        truth.parameters_.noise[m].fill_(s**2)

    error, best = (normalised_error(model.transform(z, present), z, ~present) for model in (imp, truth))
    assert error <= 1.02 * best
    share = imp.coverage(z, np.ones_like(present), ~present)["all"]
    assert 0.88 <= share <= 0.92


def test_all_ways_reach_the_same_optimum():
    z, present = from_model(n=300)
    best = GaussianImputer(2, **TIGHT).fit(z, present)
    score = best.score(z, present)
    filled = best.transform(z, present)
    ways = {
        "sequential": GaussianImputer(2, m_step="sequential", **TIGHT),
        "plain EM": GaussianImputer(2, accelerate=False, **TIGHT),
        "other start": GaussianImputer(2, random_state=5, **TIGHT),
        "gradient": GaussianImputer(2, solver="gradient", max_iter=200, tol=1e-12),
    }
    for name, model in ways.items():
        model.fit(z, present)
        assert not any(t.requires_grad for t in model.parameters_.W), name
        assert model.score(z, present) == pytest.approx(score, abs=1e-6), name
        for key, values in model.transform(z, present).items():
            np.testing.assert_allclose(values, filled[key], atol=1e-3, err_msg=name)
    stepwise = GaussianImputer(2, solver="stepwise", batch_size=64, max_iter=60, tol=0.0).fit(z, present)
    assert stepwise.score(z, present) == pytest.approx(score, abs=0.02)
