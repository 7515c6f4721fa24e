"""Kernel ridge regression: against scikit-learn, and as an imputer."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.kernel_ridge import KernelRidge

from calmrl.arrays import check
from calmrl.errors import InputError
from calmrl.imputers import KernelImputer, MeanImputer, kernel
from calmrl.imputers.kernel import (
    ALPHAS,
    GAMMAS,
    LINEAR,
    Kernel,
    best_alpha,
    fit_regression,
    leave_one_out,
    linked,
    make_features,
)
from calmrl.imputers.simple import fewer_columns
from calmrl.latent.held_out import normal_reach
from tests.support.latent_data import from_model, normalised_error, random_present
from tests.support.three_modalities import three


def curved(seed=0, n=400, noise=0.1):
    """Three modalities that see one point of the plane through different curves."""
    rng = np.random.default_rng(seed)
    point = rng.uniform(-2, 2, size=(n, 2))
    z = {}
    for name in ("a", "b", "c"):
        waves = np.sin(point @ rng.normal(size=(2, 12)) + rng.uniform(0, 6, size=12))
        z[name] = waves + noise * rng.normal(size=waves.shape)
    return z, random_present(rng, n, 3)


@pytest.fixture
def regression_data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)), rng.normal(size=(80, 3)) + 2.0
    return torch.tensor(x), torch.tensor(y), torch.tensor(rng.normal(size=(20, 5)))


def test_regression_is_that_of_scikit_learn(regression_data):
    x, y, new = regression_data
    kernel = Kernel(0.3, 0.5)
    model, _ = fit_regression(kernel, x, y, (0.7,), landmarks=100)
    oracle = KernelRidge(alpha=0.7, kernel="precomputed").fit(kernel.between(x, x).numpy(), (y - y.mean(0)).numpy())
    want = oracle.predict(kernel.between(new, x).numpy()) + y.mean(0).numpy()
    np.testing.assert_allclose(model.predict(new)[0].numpy(), want, atol=1e-8)


def test_deviations_are_those_of_a_gaussian_process(regression_data):
    x, y, new = regression_data
    model, _ = fit_regression(Kernel(0.3, 0.0), x, y, (0.7,), landmarks=100)
    process = GaussianProcessRegressor(
        ConstantKernel(1.0, "fixed") * RBF((1 / 0.6) ** 0.5, "fixed"), alpha=0.7, optimizer=None
    ).fit(x.numpy(), y[:, 0].numpy())
    _, std = process.predict(new.numpy(), return_std=True)
    want = np.sqrt(std**2 + 0.7)[:, None] * model.variance.sqrt().numpy()
    np.testing.assert_allclose(model.predict(new)[1].numpy(), want, atol=1e-8)


def test_leave_one_out_leaves_one_out(regression_data):
    x, y, _ = regression_data
    y = y - y.mean(0)
    kernel = Kernel(0.3, 0.5)
    features, p = make_features(kernel, x, 100)
    residual, _ = leave_one_out(p, features.energy, y, 0.7)
    gram = kernel.between(x, x)
    for i in (0, 17, 79):
        rest = [j for j in range(80) if j != i]
        oracle = KernelRidge(alpha=0.7, kernel="precomputed").fit(gram[rest][:, rest].numpy(), y[rest].numpy())
        want = y[i].numpy() - oracle.predict(gram[[i]][:, rest].numpy())[0]
        np.testing.assert_allclose(residual[i].numpy(), want, atol=1e-8)


def test_landmarks_are_the_regression_on_nystrom_features(regression_data):
    x, y, new = regression_data
    kernel = Kernel(0.3, 0.0)
    model, _ = fit_regression(kernel, x, y, (0.7,), landmarks=30)
    points = x[torch.linspace(0, 79, 30).round().long()]
    mixed, inner = kernel.between(x, points), kernel.between(points, points)
    inverse = torch.linalg.pinv(inner, hermitian=True)
    approximate = mixed @ inverse @ mixed.T
    coefficients = torch.linalg.solve(approximate + 0.7 * torch.eye(80, dtype=torch.float64), y - y.mean(0))
    want = kernel.between(new, points) @ inverse @ mixed.T @ coefficients + y.mean(0)
    torch.testing.assert_close(model.predict(new)[0], want, atol=1e-7, rtol=1e-7)


def test_complete_sources_give_plain_kernel_ridge():
    z, _ = curved(n=120)
    present = np.ones((120, 3), bool)
    present[100:, 2] = False
    imp = KernelImputer("mean", unit_rows=False, gamma=0.8, linear=0.0, alpha=0.3).fit(z, present)
    parts = []
    for name in ("a", "b"):
        centred = z[name] - z[name].mean(0)
        parts.append(centred / np.sqrt((centred**2).sum(1).mean()))
    x = np.concatenate(parts, axis=1) / np.sqrt(2)
    y = z["c"][:100]
    oracle = KernelRidge(alpha=0.3, kernel="rbf", gamma=0.8).fit(x[:100], y - y.mean(0))
    np.testing.assert_allclose(imp.transform(z, present)["c"][100:], oracle.predict(x[100:]) + y.mean(0), atol=1e-8)


def test_the_target_never_completes_its_own_sources():
    z, present = curved()
    imp = KernelImputer().fit(z, present)
    other = {name: np.array(block) for name, block in z.items()}
    hidden = present.copy()
    hidden[:, 0] = False
    hidden[:, 1] |= ~hidden.any(1)
    other["a"][:] = 1e6
    want, got = imp.transform(z, hidden)["a"], imp.transform(other, hidden)["a"]
    np.testing.assert_array_equal(want, got)


def test_curves_are_learned_and_intervals_cover():
    z, present = curved(n=800)
    holes = {n: np.where(present[:, [j]], a, np.nan) for j, (n, a) in enumerate(z.items())}
    imp = KernelImputer().fit(holes)
    filled, std = imp.impute(holes, return_std=True)
    error, linear = normalised_error(filled, z, ~present), normalised_error(imp.base_.transform(holes), z, ~present)
    assert error < min(0.2, 0.7 * linear)
    inside = [
        np.abs(filled[n] - a)[~present[:, j]] <= 1.6449 * std[n][~present[:, j]] for j, (n, a) in enumerate(z.items())
    ]
    assert 0.88 < np.concatenate([part.ravel() for part in inside]).mean() < 0.92
    assert set(imp.choice_) == {"a", "b", "c"}
    assert all(0 < row["error"] < 0.4 for row in imp.choice_.values())


def test_fewer_columns_choose_the_same(regression_data):
    x = regression_data[0]
    y = torch.randn(len(x), 3 * len(x), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    features, p = make_features(Kernel(0.3, 0.5), x, len(x))
    assert fewer_columns(y).shape == (len(x), len(x))
    full, few = (best_alpha(p, features.energy, columns, (0.1, 1.0, 10.0)) for columns in (y, fewer_columns(y)))
    assert few[1] == full[1]
    assert few[0] == pytest.approx(full[0], rel=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"base": "ridge"}, "base must be one of 'gaussian', 'mean'; got 'ridge'"),
        ({"gamma": -1.0}, "gamma must be a number >= 0, or 'auto'; got -1.0"),
        ({"unit_rows": "yes"}, "unit_rows must be True, False or 'auto'"),
        ({"landmarks": 0}, "landmarks must be a whole number >= 1; got 0"),
        ({"gamma": True}, "gamma must be a number >= 0, or 'auto'; got True"),
        ({"gamma": float("inf")}, "gamma must be a number"),
        ({"linear": -0.1}, "linear must be a number >= 0, or 'auto'; got -0.1"),
        ({"linear": "some"}, "linear must be a number"),
        ({"alpha": 1e-13}, "alpha must be a number >= 1e-12, or 'auto'; got 1e-13"),
        ({"landmarks": 1.5}, "landmarks must be a whole number >= 1; got 1.5"),
        ({"landmarks": True}, "landmarks must be a whole number"),
        ({"landmarks": "all"}, "landmarks must be a whole number"),
    ],
)
def test_arguments_beyond_their_limits(options, said):
    with pytest.raises(InputError, match=said):
        KernelImputer(**options).fit(*from_model(n=30))


@pytest.mark.parametrize(("both", "learned"), [(10, True), (9, False)])
def test_ten_rows_are_needed(both, learned):
    rng = np.random.default_rng(0)
    z = {"a": rng.normal(size=(60, 2)), "b": rng.normal(size=(60, 2))}
    present = np.ones((60, 2), bool)
    present[both:, 1] = False
    imputer = KernelImputer("mean").fit(z, present)
    assert (imputer.models_[1] is not None) == learned
    assert imputer.choice_["b"]["rows"] == both
    assert ("gamma" in imputer.choice_["b"]) == learned
    filled, std = imputer.impute(z, present, return_std=True)
    if not learned:
        assert imputer.choice_["b"]["error"] == 1.0
        np.testing.assert_allclose(filled["b"][both:], np.tile(z["b"][:both].mean(0), (60 - both, 1)))
        np.testing.assert_allclose(std["b"][both:], np.tile(z["b"][:both].std(0), (60 - both, 1)))


@pytest.mark.parametrize(("both", "base"), [(20, "GaussianImputer"), (19, "MeanImputer")])
def test_twenty_rows_with_two_are_needed_for_the_latent_model(both, base):
    z, _ = from_model(n=60)
    present = np.tile([True, False, False], (60, 1))
    present[:both] = True
    assert type(KernelImputer().fit(z, present).base_).__name__ == base


def test_sources_that_are_linked():
    def mask(*rows):
        return torch.tensor(rows, dtype=torch.bool)

    assert linked(mask([1, 1, 0], [0, 1, 1]))
    assert not linked(mask([1, 1, 0], [0, 0, 1]))
    assert linked(mask([1, 1, 0], [1, 0, 0]))  # the last never occurs
    assert linked(mask([0, 0, 0, 1, 1], [0, 0, 1, 1, 0], [0, 1, 1, 0, 0], [1, 1, 0, 0, 0]))


def test_what_is_tried():
    assert (GAMMAS, LINEAR) == ((0.5, 1.0, 2.0), (0.0, 0.5))
    assert ALPHAS == (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    z, present = curved(n=120)
    for choice in KernelImputer("mean").fit(z, present).choice_.values():
        assert choice["gamma"] in GAMMAS
        assert choice["linear"] in LINEAR
        assert choice["alpha"] in ALPHAS
    fixed = KernelImputer("mean", True, 0.7, 0.2, 0.5).fit(z, present).choice_["a"]
    assert (fixed["unit_rows"], fixed["gamma"], fixed["linear"], fixed["alpha"]) == (True, 0.7, 0.2, 0.5)


def test_rows_on_which_the_form_is_chosen(monkeypatch):
    sizes = []
    made = kernel.make_features
    monkeypatch.setattr(kernel, "make_features", lambda *given: sizes.append(len(given[1])) or made(*given))
    x, y = torch.randn(610, 2).double(), torch.randn(610, 1).double()
    KernelImputer(unit_rows=False, linear=0.0, alpha=1.0)._choose(x, y)
    assert sizes == [400] * 3
    assert kernel.MOST_ROWS == 20_000


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_deviations_are_scaled_per_pattern_and_then_to_cover():
    z, present = three()
    imputer = KernelImputer("mean", False, 0.8, 0.0, 0.3).fit(z, present)
    views = check(z, present)
    rows = torch.from_numpy(np.flatnonzero(present[:, 0]))
    x = imputer._inputs(views, rows, 0)
    model, left = fit_regression(Kernel(0.8, 0.0), x, torch.from_numpy(z["a"]), (0.3,), 1500)
    keys = ["0" + "".join("01"[int(has)] for has in row[1:]) for row in present]
    factor = np.array([imputer.factors_[0][key] for key in keys])
    assert set(imputer.factors_[0]) == set(keys)
    reach = np.quantile(np.abs(left.ratio.numpy()) / factor[:, None], 0.9) / normal_reach(0.9)
    torch.testing.assert_close(imputer.models_[0].variance, model.variance * reach**2)
    assert imputer.choice_["a"]["error"] == left.error
    query = {"b": z["b"][:5], "c": z["c"][:5]}
    _, std = imputer.impute(query, return_std=True)
    imputer.factors_[0].clear()  # a pattern that was never seen has the factor 1
    _, plain = imputer.impute(query, return_std=True)
    np.testing.assert_allclose(std["a"], plain["a"] * factor[[keys.index("011")]])


def test_forms_of_another_fit_are_taken():
    z, present = three()
    forms = {"a": {"unit_rows": True, "gamma": 0.5, "linear": 0.5}}
    views = check(z, present)
    imputer = KernelImputer("mean").fit_on(views, MeanImputer().fit(z, present), forms)
    assert [imputer.choice_["a"][key] for key in ("unit_rows", "gamma", "linear")] == [True, 0.5, 0.5]
    assert imputer.choice_["a"]["rows"] == 60
    constant = z | {"b": np.ones((60, 4))}
    imputer = KernelImputer("mean").fit(constant, present)
    assert imputer.models_[1] is None  # nothing to learn about what never varies
    assert imputer.unit_[1] is False
    assert imputer.length_[1] == 1.0
    filled, std = imputer.impute(constant, present, return_std=True)
    assert (filled["b"] == 1).all()
    assert not std["b"].any()


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_blocks_of_rows_give_the_same(monkeypatch, rows):
    z, present = three(30)
    imputer = KernelImputer("mean", False, 0.8, 0.0, 0.3).fit(z, present)
    want = imputer.impute(z, present, return_std=True)
    monkeypatch.setattr(kernel, "BLOCK_ROWS", rows)
    for one, two in zip(imputer.impute(z, present, return_std=True), want, strict=True):
        for name in z:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-10)


def test_what_leaving_out_shows():
    x, y = draw(30, 3), draw(30, 2, seed=1) + 5
    form = Kernel(0.3, 0.5)
    model, left = fit_regression(form, x, y, (0.7,), 100)
    features, p = make_features(form, x, 100)
    residual, kept = leave_one_out(p, features.energy, y - y.mean(0), 0.7)
    torch.testing.assert_close(model.centre, y.mean(0))
    torch.testing.assert_close(model.variance, (residual.square() * kept[:, None] / 0.7).mean(0))
    torch.testing.assert_close(left.ratio, residual / (model.variance * 0.7 / kept[:, None]).sqrt())
    assert left.error == pytest.approx(float(residual.square().sum() / (y - y.mean(0)).square().sum()))
    _, constant = fit_regression(form, x, torch.ones(30, 2).double(), (0.7,), 100)
    assert constant.error == 1.0
    assert torch.equal(constant.ratio, torch.zeros(30, 2).double())
    best = fit_regression(form, x, y, (1e-3, 0.7, 1e3), 100)
    errors = {a: fit_regression(form, x, y, (a,), 100)[1].error for a in (1e-3, 0.7, 1e3)}
    assert best[0].alpha == min(errors, key=lambda a: errors[a])


@pytest.mark.parametrize("linear", [0.0, 0.5])
def test_a_kernel_of_a_row_with_itself(linear):
    x, form = draw(5, 3), Kernel(0.3, linear)
    torch.testing.assert_close(form.between(x, x).diagonal(), form.self_value(x))
