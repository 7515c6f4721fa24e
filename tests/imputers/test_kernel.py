"""Kernel ridge regression: against scikit-learn, and as an imputer."""

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.kernel_ridge import KernelRidge

from calmrl.errors import InputError
from calmrl.imputers import KernelImputer, kernel
from calmrl.imputers.kernel import (
    ALPHAS,
    GAMMAS,
    LINEAR,
    Kernel,
    best_alpha,
    fewer_columns,
    fit_regression,
    leave_one_out,
    linked,
    make_features,
)
from tests.support.latent_data import from_model, random_present


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


def test_rbf_alone_is_that_of_scikit_learn(regression_data):
    x, y, new = regression_data
    model, _ = fit_regression(Kernel(0.3, 0.0), x, y, (0.7,), landmarks=100)
    oracle = KernelRidge(alpha=0.7, kernel="rbf", gamma=0.3).fit(x.numpy(), (y - y.mean(0)).numpy())
    np.testing.assert_allclose(
        model.predict(new)[0].numpy(), oracle.predict(new.numpy()) + y.mean(0).numpy(), atol=1e-8
    )


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
    views_rows = present[:, 0] & present[:, 1:].any(1)
    poisoned = {**z, "a": np.where(views_rows[:, None], z["a"], z["a"])}
    np.testing.assert_array_equal(KernelImputer().fit(poisoned, present).transform(z, hidden)["a"], want)


def test_curves_are_learned_and_intervals_cover():
    z, present = curved(n=800)
    holes = {n: np.where(present[:, [j]], a, np.nan) for j, (n, a) in enumerate(z.items())}
    imp = KernelImputer().fit(holes)
    filled, std = imp.impute(holes, return_std=True)
    wrong = sum(((filled[n] - a)[~present[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))
    total = sum(((a - a.mean(0))[~present[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))
    linear = imp.base_.transform(holes)
    linear_wrong = sum(((linear[n] - a)[~present[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))
    assert wrong < 0.7 * linear_wrong
    assert wrong / total < 0.2
    inside = [
        np.abs(filled[n] - a)[~present[:, j]] <= 1.6449 * std[n][~present[:, j]] for j, (n, a) in enumerate(z.items())
    ]
    assert 0.88 < np.concatenate([part.ravel() for part in inside]).mean() < 0.92
    assert set(imp.choice_) == {"a", "b", "c"}
    assert all(0 < row["error"] < 0.4 for row in imp.choice_.values())


def test_landmarks_stay_near_the_exact_answer():
    z, present = curved(n=600)
    exact = KernelImputer("mean").fit(z, present).transform(z, present)
    some = KernelImputer("mean", landmarks=150).fit(z, present).transform(z, present)
    for j, name in enumerate(z):
        gap = np.square(exact[name] - some[name])[~present[:, j]].mean()
        assert gap < 0.05 * z[name].var()


def test_save_and_load_keep_deviations(tmp_path):
    z, present = from_model(n=120)
    imp = KernelImputer().fit(z, present)
    imp.save(tmp_path / "saved")
    back = KernelImputer.load(tmp_path / "saved")
    for one, two in zip(imp.impute(z, present, True), back.impute(z, present, True), strict=True):
        for name in z:
            np.testing.assert_array_equal(one[name], two[name])
    assert back.choice_ == imp.choice_


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "ridge"}, "base must be one of 'gaussian', 'mean'; got 'ridge'"),
        ({"gamma": -1.0}, "gamma must be 'auto' or a number >= 0; got -1.0"),
        ({"alpha": 0.0}, "alpha must be 'auto' or a number"),
        ({"unit_rows": "yes"}, "unit_rows must be True, False or 'auto'"),
        ({"landmarks": 0}, "landmarks must be a whole number >= 1; got 0"),
    ],
)
def test_wrong_arguments(options, message):
    z, present = from_model(n=30)
    with pytest.raises(InputError, match=message):
        KernelImputer(**options).fit(z, present)


def test_one_landmark_is_enough():
    z, present = from_model(n=60)
    filled = KernelImputer(landmarks=1).fit(z, present).transform(z, present)
    assert all(np.isfinite(block).all() for block in filled.values())


def test_modalities_that_never_meet():
    z, _ = from_model(n=60)
    present = np.zeros((60, 3), bool)
    present[:30, :2] = True
    present[30:, 2] = True
    filled = KernelImputer().fit(z, present).transform(z, present)
    np.testing.assert_allclose(filled["m2"][:30], np.tile(z["m2"][30:].mean(0), (30, 1)))


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
        ({"gamma": True}, "gamma must be 'auto' or a number >= 0; got True"),
        ({"gamma": float("inf")}, "gamma must be 'auto'"),
        ({"linear": -0.1}, "linear must be 'auto' or a number >= 0; got -0.1"),
        ({"linear": "some"}, "linear must be 'auto'"),
        ({"alpha": 1e-13}, "alpha must be 'auto' or a number >= 1e-12; got 1e-13"),
        ({"landmarks": 1.5}, "landmarks must be a whole number >= 1; got 1.5"),
        ({"landmarks": True}, "landmarks must be a whole number"),
        ({"landmarks": "all"}, "landmarks must be a whole number"),
    ],
)
def test_arguments_beyond_their_limits(options, said):
    with pytest.raises(InputError, match=said):
        KernelImputer(**options)._check_arguments()


@pytest.mark.parametrize(
    "options",
    [{"gamma": 0.0}, {"linear": 0.0}, {"alpha": 1e-12}, {"landmarks": 1}, {"unit_rows": True}, {"unit_rows": False}],
    ids=str,
)
def test_arguments_at_their_limits(options):
    KernelImputer(**options)._check_arguments()


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


@pytest.mark.parametrize("most", [1000, 50])
def test_factors_of_patterns_lean_on_one_in_rows_evenly_spaced(most, monkeypatch):
    """As if twenty more rows of every pattern had had 1."""
    seen = []

    def fit(form, x, y, *more):
        model, left_out = fit_regression(form, x, y, *more)
        seen.append((y, left_out.ratio))
        return model, left_out

    monkeypatch.setattr(kernel, "fit_regression", fit)
    monkeypatch.setattr(kernel, "MOST_ROWS", most)
    z, present = curved(n=200)
    imputer = KernelImputer("mean", True, 0.7, 0.2, 0.5).fit(z, present)
    has = np.asarray(present)
    rows = np.flatnonzero(has[:, 0] & has[:, 1:].any(axis=1))
    rows = rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)]
    y, ratio = seen[0]
    np.testing.assert_allclose(y, np.asarray(z["a"])[rows])
    keys = np.array([f"0{int(b)}{int(c)}" for _, b, c in has[rows]])
    squares = ratio.square().mean(1).numpy()
    expected = {
        key: ((squares[keys == key].sum() + 20) / ((keys == key).sum() + 20)) ** 0.5 for key in set(keys.tolist())
    }
    assert len(expected) == 3
    assert imputer.factors_[0] == pytest.approx(expected)


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


def test_the_form_has_the_least_error_left_out():
    z, present = curved(n=90)
    best = KernelImputer("mean").fit(z, present).choice_["a"]
    tried = [
        KernelImputer("mean", unit, gamma, linear).fit(z, present).choice_["a"]["error"]
        for unit in (True, False)
        for linear in (0.0, 0.5)
        for gamma in (1.0,)
    ]
    assert best["error"] <= min(tried) + 1e-9


def test_rows_on_which_the_form_is_chosen(monkeypatch):
    sizes = []
    made = kernel.make_features
    monkeypatch.setattr(kernel, "make_features", lambda *given: sizes.append(len(given[1])) or made(*given))
    x, y = torch.randn(610, 2).double(), torch.randn(610, 1).double()
    KernelImputer(unit_rows=False, linear=0.0, alpha=1.0)._choose(x, y)
    assert sizes == [400] * 3
    assert kernel.MOST_ROWS == 20_000
