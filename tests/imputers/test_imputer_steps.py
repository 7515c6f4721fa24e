"""The steps of imputers from their formulas: one update of factors, the form of a kernel, the size of deviations."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.utils.validation import check_is_fitted

from calmrl.arrays import check
from calmrl.errors import InputError
from calmrl.imputers import AutoImputer, KernelImputer, KNNImputer, MeanImputer, auto, kernel
from calmrl.imputers.gfa import (
    Loadings,
    expected_latents,
    pattern_groups,
    predictive_deviation,
    rescaled_relevance,
    start_loadings,
    torn_latents,
    update_loadings,
)
from calmrl.imputers.kernel import Kernel, fit_regression, leave_one_out, make_features
from calmrl.latent.held_out import normal_reach
from tests.support.three_modalities import three


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def some_loadings(width=3, latents=2, seed=0):
    spread = draw(width, latents, latents, seed=seed + 1)
    precision, relevance = draw(width, seed=seed + 2).exp(), draw(latents, seed=seed + 3).exp()
    W, mean = draw(width, latents, seed=seed), draw(width, seed=seed + 4)
    return Loadings(mean, W, 0.1 * spread @ spread.mT, precision, relevance)


# ---- group factor analysis


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


def test_latents_of_rows_and_sums_of_covariances():
    parts = [some_loadings(3), some_loadings(2, seed=20)]
    present = torch.tensor([[True, True], [True, False], [True, True], [False, True]])
    rows = [draw(4, 3, seed=5), draw(4, 2, seed=6)]
    means, sums, total = expected_latents(parts, rows, pattern_groups(present))
    want, whole = [torch.zeros(2, 2).double() for _ in parts], torch.zeros(2, 2).double()
    for i in range(4):
        precision, pull = torch.eye(2).double(), torch.zeros(2).double()
        for m, part in enumerate(parts):
            if present[i, m]:
                outer = part.W[:, :, None] * part.W[:, None, :] + part.covariance
                precision = precision + (part.precision[:, None, None] * outer).sum(0)
                pull = pull + ((rows[m][i] - part.mean) * part.precision) @ part.W
        V = torch.linalg.inv(precision)
        torch.testing.assert_close(means[i], V @ pull)
        whole += V
        for m in range(2):
            want[m] += V * present[i, m]
    torch.testing.assert_close(total, whole)
    for got, expected in zip(sums, want, strict=True):
        torch.testing.assert_close(got, expected)
    assert predictive_deviation(parts[0], means, pattern_groups(present), parts).shape == (4, 3)


# ---- kernels


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


def test_the_order_in_which_forms_are_tried(monkeypatch):
    errors = {(True, 0.0): 4, (True, 0.5): 3, (False, 0.0): 2, (False, 0.5): 5}
    tried = []

    def make(form, x, rows):
        unit = bool(np.allclose(np.linalg.norm(x, axis=1), 1))
        tried.append((unit, form.linear, form.gamma))
        return SimpleNamespace(energy=errors[unit, form.linear] - (form.gamma == 2.0)), None

    monkeypatch.setattr(kernel, "make_features", make)
    centres = []

    def best(p, energy, y, alphas):
        centres.append(float(y.mean(0).abs().max()))
        return energy, alphas[0]

    monkeypatch.setattr(kernel, "best_alpha", best)
    x, y = 3 + draw(9, 2), 3 + draw(9, 1)
    assert KernelImputer()._choose(x, y) == (False, Kernel(2.0, 0.0))
    assert tried[:4] == [(True, 0.0, 1.0), (True, 0.5, 1.0), (False, 0.0, 1.0), (False, 0.5, 1.0)]
    assert tried[4:] == [(False, 0.0, 0.5), (False, 0.0, 2.0)]
    tried.clear()
    assert KernelImputer(gamma=0.7)._choose(x, y) == (False, Kernel(0.7, 0.0))
    assert KernelImputer(unit_rows=True, gamma=0.7)._choose(x, y) == (True, Kernel(0.7, 0.5))
    assert len(tried) == 4 + 2
    assert KernelImputer(unit_rows=True, gamma=0.7, linear=0.5)._choose(x, y) == (True, Kernel(0.7, 0.5))
    assert len(tried) == 6  # nothing to choose
    assert max(centres) < 1e-6  # in float32


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


@pytest.mark.parametrize(("pairs", "latent"), [(20, True), (19, False)])
def test_rows_with_two_modalities_are_enough_for_the_latent_model(monkeypatch, pairs, latent):
    fake = SimpleNamespace(fit=lambda z, present: "latent")
    monkeypatch.setattr(kernel, "GaussianImputer", lambda *options, **more: fake)
    z, present = three(40)[0], np.tile([True, False, False], (40, 1))
    present[:pairs, 1] = True
    base = KernelImputer()._fitted_base(check(z, present))
    assert (base == "latent") == latent


# ---- choosing


def test_values_inside_their_interval():
    imputer = AutoImputer()
    imputer.scale_ = np.array([[1.0, 9.0], [2.0, 9.0]])
    score = np.array([[1.95, 1.97], [3.91, 3.93], [0.0, 3.0]])
    assert imputer._covered(0, score, np.array([0, 1, 0])) == pytest.approx(50)
    assert imputer._covered(0, np.zeros((0, 2)), np.zeros(0, int)) is None
    assert (auto.LEVEL_ROWS, auto.LEAST_BLOCKS, auto.MOST_VALUES) == (400, 10, 20_000_000)


def test_deviations_of_the_last_fit_are_brought_to_those_that_were_checked(monkeypatch):
    monkeypatch.setattr(auto, "LEVEL_ROWS", 3)
    z, present = {"a": np.zeros((9, 1)), "b": np.zeros((9, 1))}, np.ones((9, 2), bool)
    present[2:, 1] = False
    imputer = AutoImputer()
    imputer.names_, imputer.scale_, imputer.choice_, imputer.models_ = ("a", "b"), np.full((3, 2), 5.0), {}, {"x": 1}
    asked = []

    def average(models, whole, views, with_std):
        asked.append((len(views), with_std))
        variance = 36.0 if "trial" in models else 4.0
        return [], [torch.full((len(views), 1), variance) for _ in range(2)]

    monkeypatch.setattr(imputer, "_average", average)
    imputer._carry_levels(check(z, present), {"trial": 1})
    assert asked == [(3, True)] * 2
    assert imputer.scale_[1].tolist() == [5.0, pytest.approx(15.0)]
    assert imputer.choice_["std_scale"]["b"] == imputer.scale_[:, 1].tolist()
    before = imputer.scale_.copy()
    imputer._carry_levels(check(z, np.ones((9, 2), bool)), {"trial": 1})  # nothing is missing
    assert (imputer.scale_ == before).all()
    assert len(asked) == 2


@pytest.mark.parametrize(
    "make", [lambda blocks: AutoImputer(["mean"], blocks=blocks), lambda blocks: KNNImputer(blocks=blocks)]
)
def test_a_second_fit_may_have_other_columns(make):
    x = np.random.default_rng(0).normal(size=(60, 6))
    imputer = make([2, 2]).fit(x[:, :4])
    assert imputer.n_features_in_ == 4
    with pytest.raises(ValueError, match="6 features"):
        imputer.transform(x)
    imputer.set_params(blocks=[3, 3]).fit(x)
    assert imputer.n_features_in_ == 6


def test_nothing_is_imputed_before_a_fit():
    with pytest.raises(ValueError, match="not fitted"):
        KNNImputer().transform({"a": np.zeros((2, 1))})
    with pytest.raises(ValueError, match="not fitted"):
        KNNImputer().get_state()
    check_is_fitted(KNNImputer().fit({"a": np.zeros((2, 1))}))
    with pytest.raises(InputError):
        KNNImputer().fit({"a": np.zeros((0, 1))})


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


def test_factors_from_single_entries_row_by_row():
    part, block = some_loadings(4), draw(5, 4, seed=5)
    seen = torch.from_numpy(np.random.default_rng(0).random((5, 4)) < 0.6)
    assert not bool(seen.all())
    means, second = torn_latents([part], [torch.where(seen, block, 0.0)], [seen.double()])
    for row, has in enumerate(seen):
        inverse = torch.eye(2).double()
        pull = torch.zeros(2).double()
        for d in has.nonzero()[:, 0]:
            inverse += part.precision[d] * (torch.outer(part.W[d], part.W[d]) + part.covariance[d])
            pull += part.precision[d] * (block[row, d] - part.mean[d]) * part.W[d]
        V = torch.linalg.inv(inverse)
        torch.testing.assert_close(means[row], V @ pull)
        torch.testing.assert_close(second[row], V + torch.outer(V @ pull, V @ pull))
