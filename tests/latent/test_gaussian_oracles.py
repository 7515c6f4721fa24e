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
from tests.support.latent_data import from_model, random_present

TIGHT = {"max_iter": 3000, "tol": 1e-13}


def fitted(K=1, noise="isotropic", **data):
    z, present = from_model(**data)
    model = GaussianImputer(2, n_components=K, noise=noise, max_iter=15, tol=0.0).fit
    with pytest.warns(UserWarning, match="without reaching tol"):
        return model(z, present), z, present


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


@pytest.mark.parametrize(("K", "noise"), [(1, "isotropic"), (1, "diagonal"), (3, "isotropic"), (3, "diagonal")])
def test_prediction_is_dense_conditioning(K, noise):
    imp, z, present = fitted(K, noise, n=60)
    arrays = list(z.values())
    params = imp.parameters_
    filled, std = imp.impute(z, present, return_std=True)
    for i in range(40):
        for m, name in enumerate(z):
            if present[i, m]:
                assert (std[name][i] == 0).all()
                continue
            mean, cov = slow.condition(params, arrays, present[i], i, m)
            np.testing.assert_allclose(filled[name][i], mean, atol=1e-10)
            np.testing.assert_allclose(std[name][i], np.sqrt(np.diag(cov)), atol=1e-10)
    np.testing.assert_allclose(imp.score_samples(z, present), slow.log_likelihood(params, arrays, present), atol=1e-9)


def test_posterior_and_full_covariance_are_dense_conditioning():
    imp, z, present = fitted(n=40)
    arrays = list(z.values())
    mean, covariance = imp.posterior(z, present)
    for i in range(40):
        m, V = slow.latent_posterior(imp.parameters_, arrays, present[i], i)
        np.testing.assert_allclose(mean[i], m, atol=1e-10)
        np.testing.assert_allclose(covariance[i], V, atol=1e-10)
    rows = present[:, 1:].any(1)
    sub = {name: a[rows] for name, a in z.items()}
    got = imp.predictive_covariance(sub, "m0", present[rows])
    others = present[rows].copy()
    others[:, 0] = False
    for i in range(rows.sum()):
        _, cov = slow.condition(imp.parameters_, list(sub.values()), others[i], i, 0)
        np.testing.assert_allclose(got[i], cov, atol=1e-10)


def test_likelihood_ratio_is_the_dense_one():
    imp, z, present = fitted(n=40)
    q, g = ({name: a[s] for name, a in z.items()} for s in (slice(0, 6), slice(6, 14)))
    nan = lambda d, p: {n: np.where(p[:, [j]], a, np.nan) for j, (n, a) in enumerate(d.items())}  # noqa: E731
    want = slow.likelihood_ratio(imp.parameters_, list(q.values()), present[:6], list(g.values()), present[6:14])
    got = imp.similarity(nan(q, present[:6]), nan(g, present[6:14]), "likelihood_ratio")
    np.testing.assert_allclose(got, want, atol=1e-9)


def test_one_step_is_the_loop_over_rows():
    z, present = from_model(n=50)
    source = open_source(z, present)
    start = start_at_random(source, 2, seed=0)
    prior = Prior(0.0, 0.0, 0.0, 0.0, source.variance, noise_floor(source))
    got = maximise(expected_statistics(source, start), start, prior, m_step="joint", isotropic=True)
    centred = [a - mean.numpy() for a, mean in zip(z.values(), source.mean, strict=True)]
    W, mu, noise = slow.em_step(start, centred, present)
    for m in range(3):
        np.testing.assert_allclose(got.W[m][0], W[m], atol=1e-10)
        np.testing.assert_allclose(got.mu[m][0], mu[m], atol=1e-10)
        np.testing.assert_allclose(got.noise[m][0], noise[m], atol=1e-10)


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

    def error(model):
        filled = model.transform(z, present)
        return sum(((filled[name] - a)[~present[:, j]] ** 2).sum() for j, (name, a) in enumerate(z.items()))

    assert error(imp) <= 1.02 * error(truth)
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
