"""Choosing among imputers, and averaging them."""

import json
import time
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from calmrl.arrays import check
from calmrl.errors import InputError
from calmrl.imputers import IMPUTERS, AutoImputer, GaussianImputer, MoPoEImputer, auto
from calmrl.imputers.auto import RACE_EPOCHS
from calmrl.imputers.stacking import CANDIDATES, Guesses, Stack, hidden_blocks, simplex_weights
from tests.support.latent_data import from_model, random_present

FAST = ["gaussian", "kernel", "ridge", "knn", "mean"]


def clustered(seed=0, n=500):
    """Rows of eight clusters, which no linear map links, and holes."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 8, n)
    z = {}
    for name, width in (("a", 10), ("b", 8), ("c", 9)):
        z[name] = rng.normal(size=(8, width))[label] + 0.5 * rng.normal(size=(n, width))
    return z, random_present(rng, n, 3)


def normalised(filled, z, hidden):
    wrong = sum(((filled[n] - a)[hidden[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))
    return wrong / sum(((a - a.mean(0))[hidden[:, j]] ** 2).sum() for j, (n, a) in enumerate(z.items()))


@pytest.mark.parametrize("data", [from_model, clustered])
def test_nothing_is_better_and_intervals_cover(data):
    z, present = data(n=700)
    holes = {n: np.where(present[:, [j]], a, np.nan) for j, (n, a) in enumerate(z.items())}
    auto = AutoImputer(FAST).fit(holes)
    filled, std = auto.impute(holes, return_std=True)
    mine = normalised(filled, z, ~present)
    for name in FAST:
        options = {"gaussian": ("auto", "auto", "auto")}.get(name, ())
        other = IMPUTERS[name](*options).fit(holes)
        assert mine < 1.02 * normalised(other.transform(holes), z, ~present), name
    inside = [
        np.abs(filled[n] - a)[~present[:, j]] <= 1.6449 * std[n][~present[:, j]] for j, (n, a) in enumerate(z.items())
    ]
    assert 0.86 < np.concatenate([part.ravel() for part in inside]).mean() < 0.94  # few blocks to calibrate on


def test_says_what_it_chose(capsys):
    z, present = clustered()
    start = time.perf_counter()
    auto = AutoImputer(["gaussian", "knn", "mean"], verbose=True).fit(z, present)
    whole = time.perf_counter() - start
    choice = auto.choice_
    json.dumps(choice)
    assert set(choice["seconds"]) == {"gaussian", "knn", "mean"}
    assert 0 < sum(choice["seconds"].values()) < whole
    assert set(choice["errors"]) == {"gaussian", "knn", "mean"}
    assert choice["errors"]["mean"]["all"] == pytest.approx(1.0, abs=1e-9)
    assert choice["error"] <= min(row["all"] for row in choice["errors"].values()) + 1e-9
    assert "mean" not in auto.models_
    for weights in choice["weights"].values():
        assert set(weights) == set(auto.models_)
        assert sum(weights.values()) == pytest.approx(1)
        assert min(weights.values()) >= 0
    printed = capsys.readouterr().err
    assert "knn: held-out error" in printed
    assert "chosen: " in printed


def test_average_is_the_weighted_sum():
    z, present = clustered()
    auto = AutoImputer(["ridge", "knn"]).fit(z, present)
    auto.chosen_, auto.weight_ = ["ridge", "knn"], np.array([[0.3, 0.5, 1.0], [0.7, 0.5, 0.0]])
    auto.refit(z, present)
    filled = auto.transform(z, present)
    parts = [model.transform(z, present) for model in auto.models_.values()]
    for j, name in enumerate(z):
        want = auto.weight_[0, j] * parts[0][name] + auto.weight_[1, j] * parts[1][name]
        np.testing.assert_allclose(filled[name], want, atol=1e-12)


def test_coverage_is_in_percent_of_the_held_out_values():
    z, present = from_model(n=400)
    auto = AutoImputer(["ridge", "mean"]).fit(z, present)
    covered = auto.choice_["coverage_by_modality"]
    assert set(covered) == set(z)
    assert all(92 < share < 98 for share in covered.values())
    assert auto.choice_["held_out"] == sum(auto.choice_["held_out_by_modality"].values())
    assert set(auto.choice_["seconds"]) == {"ridge", "mean"}


def test_progress_is_told_step_by_step():
    z, present = from_model(n=60)
    told = []
    auto = AutoImputer(["knn", "mean"]).fit(z, present, progress=lambda *step: told.append(step))
    assert told == [(0, 3, "trying knn"), (1, 3, "trying mean"), (2, 3, f"fitting {' + '.join(auto.chosen_)}")]


def test_hidden_blocks_follow_the_patterns_of_the_data():
    present = np.ones((4000, 3), bool)
    present[:1000, 1:] = False  # only the first
    present[1000:1500, 0] = False  # without the first
    hidden = hidden_blocks(present, np.random.default_rng(0))
    assert (present[hidden]).all()
    left = (present & ~hidden)[hidden.any(1)]
    patterns, counts = np.unique(left, axis=0, return_counts=True)
    assert {tuple(row) for row in patterns} == {(True, False, False), (False, True, True)}
    share = dict(zip(map(tuple, patterns.tolist()), counts / counts.sum(), strict=True))
    assert share[(True, False, False)] == pytest.approx(2 / 3, abs=0.05)
    assert 0.12 <= hidden.sum() / present.sum() < 0.125


def test_hidden_blocks_of_complete_data_lack_one_modality():
    hidden = hidden_blocks(np.ones((500, 4), bool), np.random.default_rng(0))
    assert set(hidden.sum(1).tolist()) == {0, 1}


def test_held_out_values_are_not_seen(monkeypatch):
    z, present = clustered()
    seen = []
    plain = IMPUTERS["knn"].fit

    def spy(self, z, present=None):
        seen.append(np.array(present))
        return plain(self, z, present)

    monkeypatch.setattr(IMPUTERS["knn"], "fit", spy)
    AutoImputer(["knn"]).fit(z, present)
    hidden = hidden_blocks(present, np.random.default_rng(0))
    np.testing.assert_array_equal(seen[0], present & ~hidden)
    np.testing.assert_array_equal(seen[1], present)


def test_weights_minimise_the_squared_error():
    rng = np.random.default_rng(0)
    for _ in range(5):
        residuals = rng.normal(size=(4, 50)) + rng.normal(size=50)
        gram = residuals @ residuals.T
        got = simplex_weights(gram)
        found = minimize(
            lambda w, gram=gram: w @ gram @ w,
            np.full(4, 0.25),
            bounds=[(0, 1)] * 4,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
            method="SLSQP",
        )
        np.testing.assert_allclose(got @ gram @ got, found.fun, rtol=1e-4)


def test_useless_candidates_are_not_kept():
    rng = np.random.default_rng(0)
    stack = Stack([1000.0, 1000.0], [40, 40], [5, 5])
    good = [rng.normal(size=(40, 5)) for _ in range(2)]
    stack.guesses["good"] = Guesses(good, [np.ones((40, 5))] * 2)
    stack.guesses["worse"] = Guesses([2 * r for r in good], [np.ones((40, 5))] * 2)
    weights = stack.weigh()
    assert weights.chosen == ["good"]
    np.testing.assert_array_equal(weights.weight, np.ones((1, 2)))


def test_units_do_not_decide():
    z, present = clustered()
    loud = {**z, "c": 1e4 * np.random.default_rng(0).normal(size=z["c"].shape)}  # noise in a large unit
    auto = AutoImputer(["kernel", "mean"]).fit(loud, present)
    assert auto.choice_["weights"]["a"]["kernel"] > 0.5
    filled = auto.transform(loud, present)
    error = np.square(filled["a"] - z["a"])[~present[:, 0]].mean() / z["a"].var()
    assert error < 0.8


def test_save_load_and_refit(tmp_path):
    z, present = clustered()
    auto = AutoImputer(FAST).fit(z, present)
    auto.save(tmp_path / "saved")
    back = AutoImputer.load(tmp_path / "saved")
    assert back.choice_ == auto.choice_
    for one, two in zip(auto.impute(z, present, True), back.impute(z, present, True), strict=True):
        for name in z:
            np.testing.assert_array_equal(one[name], two[name])
    want, got = (model.refit(z, present).transform(z, present) for model in (auto, back))
    for name in z:
        np.testing.assert_array_equal(got[name], want[name])


def test_too_few_rows_to_compare_become_means_and_say_so():
    z, present = from_model(n=4)
    with pytest.warns(UserWarning, match="too few to compare imputers"):
        auto = AutoImputer().fit(z, present)
    assert list(auto.models_) == ["mean"]


def test_modalities_that_never_meet_leave_the_latent_model_out():
    z, _ = from_model(n=120)
    present = np.zeros((120, 3), bool)
    present[:60, :2] = True
    present[60:, 2] = True
    auto = AutoImputer(FAST).fit(z, present)
    assert "gaussian" not in auto.choice_["errors"]
    filled = auto.transform(z, present)
    assert all(np.isfinite(values).all() for values in filled.values())


def test_torch_and_float32():
    z, present = clustered()
    tensors = {n: torch.tensor(a, dtype=torch.float32) for n, a in z.items()}
    filled, std = (
        AutoImputer(["knn", "ridge"])
        .fit(tensors, torch.tensor(present))
        .impute(tensors, torch.tensor(present), return_std=True)
    )
    assert all(t.dtype == torch.float32 for t in [*filled.values(), *std.values()])


@pytest.mark.parametrize("wrong", [["gausian"], [], "gaussian"])
def test_wrong_candidates(wrong):
    z, present = clustered(n=60)
    with pytest.raises(InputError, match="candidates must be a list of names"):
        AutoImputer(wrong).fit(z, present)


@pytest.mark.parametrize(("most", "costly"), [(80, True), (79, False)])
def test_costly_candidates_are_for_few_values(most, costly, monkeypatch):
    """Ten rows of eight columns hold 80 values."""
    views = check({"a": np.zeros((10, 5)), "b": np.zeros((10, 3))}, np.ones((10, 2), dtype=bool))
    monkeypatch.setattr(auto, "MOST_VALUES", most)
    names = AutoImputer()._names(views)
    assert set(auto.COSTLY) <= set(CANDIDATES)
    assert set(names) == (set(CANDIDATES) if costly else set(CANDIDATES) - set(auto.COSTLY))


def columns(n):
    return check({"a": np.arange(n, dtype=float)[:, None]}, np.ones((n, 1), dtype=bool))


def test_rows_on_which_candidates_are_compared():
    imputer = AutoImputer()
    imputer.seed_ = 3
    few = columns(10_000)
    assert imputer._sample(few) is few
    rows = imputer._sample(columns(10_001)).arrays["a"][:, 0]
    assert len(rows) == 10_000
    assert (np.diff(rows) > 0).all()


@pytest.mark.parametrize(("blocks", "compared"), [(10, True), (9, False)])
def test_ten_blocks_are_needed_to_compare(monkeypatch, blocks, compared):
    z, present = from_model(n=60)
    present[:] = True

    def hidden(mask, rng):
        found = np.zeros_like(mask)
        found[:blocks, 0] = True
        return found

    monkeypatch.setattr(auto, "hidden_blocks", hidden)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        imputer = AutoImputer(["ridge", "mean"]).fit(z, present)
    assert bool(imputer.choice_["errors"]) == compared
    assert imputer.choice_["held_out"] == blocks
    assert any("only 9 blocks of rows" in str(one.message) for one in said) != compared
    if not compared:
        assert imputer.scale_.tolist() == np.ones((4, 3)).tolist()
        assert imputer.choice_["weights"] == {name: {"mean": 1.0} for name in z}
        assert imputer.choice_["std_scale"] == {name: [1.0] * 4 for name in z}


def curved(n=160):
    """Two modalities that are curves of the same angle, and one that is noise: nothing linear explains them."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, n)
    z = {f"m{f}": np.stack([np.cos(f * angle), np.sin(f * angle)], 1) + 0.05 * rng.normal(size=(n, 2)) for f in (1, 2)}
    z["noise"] = rng.normal(size=(n, 2))
    present = rng.random((n, 3)) < 0.7
    present[~present.any(1), 0] = True
    return {name: np.where(present[:, [j]], block, np.nan) for j, (name, block) in enumerate(z.items())}, present


@pytest.mark.parametrize("race", [True, False])
def test_the_race_ends_the_training_of_what_has_no_weight(race, monkeypatch):
    epochs = []
    step = MoPoEImputer._error
    monkeypatch.setattr(MoPoEImputer, "_error", lambda self, *given: epochs.append(1) or step(self, *given))
    _, present = curved()
    z = {name: np.random.default_rng(j).normal(size=(160, 2)) for j, name in enumerate("abc")}  # nothing to learn
    auto = AutoImputer(["mopoe", "mean"], race=race).fit(z, present)
    assert ("mopoe" in auto.choice_["left_out"]) == race
    assert ("mopoe" in auto.choice_["errors"]) == (not race)
    assert (len(epochs) <= RACE_EPOCHS + 2) == race
    assert set(auto.choice_["seconds"]) == {"mopoe", "mean"}


def test_what_the_race_trained_is_not_trained_again(monkeypatch):
    fits = []
    fit = MoPoEImputer.fit
    monkeypatch.setattr(MoPoEImputer, "fit", lambda self, *given, **more: fits.append(1) or fit(self, *given, **more))
    z, present = curved()
    for race in (True, False):
        fits.clear()
        auto = AutoImputer(["mopoe", "mean"], race=race).fit(z, present)
        assert "mopoe" in auto.chosen_
        assert len(fits) == (1 if race else 2)
    auto.refit(z, present)
    assert len(fits) == 3


@pytest.mark.parametrize("leads", [True, False])
def test_whitened_features_are_tried_only_where_the_latent_model_leads(leads, monkeypatch):
    tried = []
    fit = GaussianImputer.fit_with

    def note(self, z, mask, engine, ready):
        tried.append((self.whitening, len(ready)))
        return fit(self, z, mask, engine, ready=ready)

    monkeypatch.setattr(GaussianImputer, "fit_with", note)
    z, present = curved()
    if leads:  # linear in shared factors, as the latent model has it
        rng = np.random.default_rng(1)
        shared = rng.normal(size=(160, 2))
        z = {name: shared @ rng.normal(size=(2, 6)) + 0.3 * rng.normal(size=(160, 6)) for name in z}
    AutoImputer(["gaussian", "knn"]).fit(z, present)
    assert [whitening for whitening, _ in tried] == [0.0, "auto"][: 1 + leads]
    assert tried[0][1] == 0
    assert all(made > 0 for _, made in tried[1:])  # trials of the search before are not made again
