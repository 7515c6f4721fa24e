"""Partial whitening inside the latent model."""

import numpy as np
import pytest
import torch

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers.gradient import GaussianLatent
from calmrl.latent.rows import open_source
from calmrl.latent.whitening import principal_axes
from tests.reference.latent import condition, dense
from tests.support.latent_data import from_model, normalised_error, random_present, stacked, with_nan


def uneven(seed=0, n=300, widths=(12, 9, 7), latents=3):
    """Rows whose columns differ widely in variance and are correlated, with holes."""
    rng = np.random.default_rng(seed)
    z, _ = from_model(seed, n=n, widths=widths, latents=latents, noise=0.4)
    turned = {}
    for name, block in z.items():
        basis = np.linalg.qr(rng.normal(size=(block.shape[1],) * 2))[0]
        turned[name] = block @ (basis * np.geomspace(5.0, 0.1, block.shape[1])) @ basis.T + rng.normal(
            size=basis[0].shape
        )
    return turned, random_present(rng, n, len(widths))


@pytest.fixture
def few_directions(monkeypatch):
    """Fewer directions than columns, so that something is left outside."""
    monkeypatch.setattr("calmrl.latent.whitening.principal_axes.__defaults__", (5,))


@pytest.mark.parametrize("power", [0.35, 1.0])
@pytest.mark.usefixtures("few_directions")
def test_predictions_are_those_of_the_dense_gaussian(power):
    z, present = uneven()
    imp = GaussianImputer(3, whitening=power, prior=5.0).fit(z, present)
    assert imp.parameters_.rotations[0].directions.shape == (12, 5)
    filled, std = imp.impute(z, present, return_std=True)
    x, at = stacked(with_nan(z, present)), np.repeat(np.arange(3), imp.parameters_.widths)
    for i in np.flatnonzero(~present.all(1))[:15]:
        mean, covariance, _ = condition(*dense(imp.parameters_), x[i])
        gone = at[np.isnan(x[i])]
        for m in np.flatnonzero(~present[i]):
            name = list(z)[m]
            own = covariance[np.ix_(gone == m, gone == m)]
            np.testing.assert_allclose(filled[name][i], mean[gone == m], atol=1e-8)
            np.testing.assert_allclose(std[name][i], np.sqrt(np.diag(own)), atol=1e-8)
            mask = present[i : i + 1]
            full = imp.predictive_covariance({n: a[i : i + 1] for n, a in z.items()}, name, mask)
            np.testing.assert_allclose(full[0], own, atol=1e-8)


@pytest.mark.usefixtures("few_directions")
def test_likelihood_is_that_of_the_dense_gaussian():
    z, present = uneven()
    imp = GaussianImputer(3, whitening=0.5).fit(z, present)
    x = stacked(with_nan(z, present))[:40]
    want = [condition(*dense(imp.parameters_), row)[2] for row in x]
    got = imp.score_samples({n: a[:40] for n, a in z.items()}, present[:40])
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_learned_attributes_are_in_the_space_of_z():
    z, present = uneven()
    imp = GaussianImputer(3, whitening=0.5).fit(z, present)
    assert imp.W_["m0"].shape == (12, 3)
    assert imp.mu_["m0"].shape == (12,)
    _, covariance = dense(imp.parameters_)
    W = np.concatenate(list(imp.W_.values()))
    sigma2 = np.concatenate(list(imp.sigma2_.values()))
    np.testing.assert_allclose(np.diag(W @ W.T) + sigma2, np.diag(covariance), rtol=1e-10)
    heads = imp.as_heads()
    with torch.no_grad():
        mapped = heads["m1"](torch.tensor(z["m1"], dtype=torch.float32)).numpy()
    np.testing.assert_allclose(mapped, imp.embed({"m1": z["m1"]}), atol=1e-4)


@pytest.mark.usefixtures("few_directions")
def test_draws_have_the_predictive_covariance():
    z, _ = uneven(n=60)
    imp = GaussianImputer(3, whitening=0.6).fit(z)
    many = {n: np.repeat(a[:1], 40_000, axis=0) for n, a in z.items()}
    mask = np.tile([True, False, True], (40_000, 1))
    drawn = imp.sample(many, mask)["m1"]
    want = imp.predictive_covariance({n: a[:1] for n, a in z.items()}, "m1", mask[:1])[0]
    np.testing.assert_allclose(np.cov(drawn.T), want, atol=0.05 * np.abs(want).max())


def test_save_and_load(tmp_path):
    z, present = uneven()
    imp = GaussianImputer(3, whitening=0.5).fit(z, present)
    imp.save(tmp_path / "saved")
    back = GaussianImputer.load(tmp_path / "saved")
    for one, two in zip(imp.impute(z, present, True), back.impute(z, present, True), strict=True):
        for name in z:
            np.testing.assert_array_equal(one[name], two[name])
    assert back.score(z, present) == imp.score(z, present)


@pytest.mark.parametrize("components", [1, 3])
def test_mixtures_memory_maps_and_chunks_agree(components, tmp_path):
    z, present = uneven()
    settings = {"latent_dim": 3, "n_components": components, "whitening": 0.5, "max_iter": 8, "tol": 0.0}
    want = GaussianImputer(**settings).fit(z, present).transform(z, present)
    mapped = {}
    for name, block in z.items():
        np.save(tmp_path / f"{name}.npy", block)
        mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    chunks = [({n: a[i : i + 100] for n, a in z.items()}, present[i : i + 100]) for i in (0, 100, 200)]
    for given in ((mapped, present), (chunks, None)):
        got = GaussianImputer(**settings).fit(*given).transform(z, present)
        for name in z:
            np.testing.assert_allclose(got[name], want[name], atol=1e-6)


def test_what_cannot_work_says_so():
    z, present = uneven()
    imp = GaussianImputer(3, whitening=0.5).fit(z, present)
    with pytest.raises(InputError, match="whitened model"):
        imp.partial_fit(z, present)
    with pytest.raises(InputError, match="whitened model"):
        imp.missing({n: torch.tensor(a) for n, a in z.items()}, torch.tensor(present), learn=True)
    with pytest.raises(InputError, match="whitening=0"):
        GaussianLatent(imp.parameters_)
    with pytest.raises(InputError, match="set whitening=0"):
        GaussianImputer(3, whitening=0.5).partial_fit(z, present)


def embeddings(seed=0, n=700, width=160, latents=40):
    """Wide rows with a falling spectrum: many weak shared directions below a few strong private ones."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, latents))
    z = {}
    for name in ("a", "b", "c"):
        private = rng.normal(size=(n, width)) * np.geomspace(6.0, 0.3, width)
        basis = np.linalg.qr(rng.normal(size=(width, width)))[0]
        z[name] = (private @ basis + shared @ rng.normal(size=(latents, width)) * 0.35).astype(np.float32)
    return z, random_present(rng, n, 3)


def test_auto_finds_whitening_on_wide_data_and_its_intervals_cover():
    z, present = embeddings()
    holes = {n: np.where(present[:, [j]], a, np.nan) for j, (n, a) in enumerate(z.items())}
    auto = GaussianImputer("auto").fit(holes)
    assert any(row["whitening"] > 0 and row["latent_dim"] == 256 for row in auto.search_)
    assert auto.settings_.whitening > 0
    plain = GaussianImputer("auto", whitening=0).fit(holes)

    error, of_plain = (normalised_error(model.transform(holes), z, ~present) for model in (auto, plain))
    assert error < 0.99 * of_plain
    assert 0.88 < auto.coverage(z, None, ~present)["all"] < 0.92


def test_refit_keeps_the_settings():
    z, present = uneven()
    imp = GaussianImputer("auto").fit(z, present)
    settings, scale = imp.settings_, imp.std_scale_
    half = {n: a[:150] for n, a in z.items()}
    imp.refit(half, present[:150])
    assert imp.settings_ == settings
    assert imp.std_scale_ == scale
    assert imp.n_iter_ <= settings.iterations


def test_values_that_overflow_are_refused():
    z, present = from_model(n=50)
    large = {n: (a * 1e19).astype(np.float32) for n, a in z.items()}
    with pytest.raises(InputError, match="too large for torch"):
        GaussianImputer(2).fit(large, present)
    filled, std = (
        GaussianImputer(2)
        .fit({n: a * 1e19 for n, a in z.items()}, present)
        .impute({n: a * 1e19 for n, a in z.items()}, present, return_std=True)
    )
    assert all(np.isfinite(a).all() for a in [*filled.values(), *std.values()])


@pytest.mark.parametrize("size", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize(("rank", "kept"), [(400, 7), (3, 3), (7, 7)])
def test_principal_axes(size, rank, kept):
    z, present = uneven(n=80)
    block = size * z["m2"]
    rows = open_source({"a": block, "b": z["m1"]}, np.column_stack([np.ones(80, bool), present[:, 1]]))
    axes = principal_axes(rows, rank)[0]
    values, vectors = np.linalg.eigh(np.cov(block.T, bias=True))
    np.testing.assert_allclose(axes.variance, values[::-1][:kept], rtol=1e-8)
    aligned = np.abs((axes.directions.numpy() * vectors[:, ::-1][:, :kept]).sum(0))
    np.testing.assert_allclose(aligned, 1, atol=1e-6)
    rest = values[::-1][kept:].mean() if kept < 7 else values[0]
    np.testing.assert_allclose(axes.rest, rest, rtol=1e-6)
    assert principal_axes.__defaults__ == (400,)


def test_axes_of_what_hardly_or_never_varies():
    rng = np.random.default_rng(0)
    line = rng.normal(size=(50, 1)) * np.array([3.0, 4.0, 0.0]) + 2  # one direction, two without any variance
    rows = open_source({"a": line, "b": np.full((50, 3), 7.0)}, np.ones((50, 2), bool))
    first, constant = principal_axes(rows)
    assert first.directions.shape == (3, 1)
    np.testing.assert_allclose(first.directions[:, 0].abs(), [0.6, 0.8, 0], atol=1e-9)
    variance = float(first.variance[0])
    np.testing.assert_allclose(first.rest, 1e-7 * variance + 1e-14 * (1 + (line.mean(0) ** 2).mean()), rtol=1e-6)
    assert constant.directions.shape == (3, 1)
    np.testing.assert_allclose(constant.rest, 1e-14 * 50, rtol=1e-6)
