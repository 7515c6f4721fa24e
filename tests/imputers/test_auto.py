"""Choosing among imputers, and averaging them."""

import json
import time
import warnings

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from calmrl.arrays import check
from calmrl.errors import InputError
from calmrl.imputers import (
    IMPUTERS,
    AutoImputer,
    GaussianImputer,
    KernelImputer,
    KNNImputer,
    MeanImputer,
    MoPoEImputer,
    auto,
)
from calmrl.imputers.auto import RACE_EPOCHS
from calmrl.imputers.stacking import CANDIDATES, Fitter, hidden_blocks, try_candidate
from tests.support.latent_data import from_model, normalised_error, random_present
from tests.support.three_modalities import three

FAST = ["gaussian", "kernel", "ridge", "knn", "mean"]


def clustered(seed=0, n=500):
    """Rows of eight clusters, which no linear map links, and holes."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 8, n)
    z = {}
    for name, width in (("a", 10), ("b", 8), ("c", 9)):
        z[name] = rng.normal(size=(8, width))[label] + 0.5 * rng.normal(size=(n, width))
    return z, random_present(rng, n, 3)


@pytest.mark.parametrize("data", [from_model, clustered])
def test_nothing_is_better_and_intervals_cover(data):
    z, present = data(n=700)
    holes = {n: np.where(present[:, [j]], a, np.nan) for j, (n, a) in enumerate(z.items())}
    auto = AutoImputer(FAST).fit(holes)
    filled, std = auto.impute(holes, return_std=True)
    mine = normalised_error(filled, z, ~present)
    for name in FAST:
        options = {"gaussian": ("auto", "auto", "auto")}.get(name, ())
        other = IMPUTERS[name](*options).fit(holes)
        assert mine < 1.02 * normalised_error(other.transform(holes), z, ~present), name
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
    assert choice["held_out"] == sum(choice["held_out_by_modality"].values())
    assert all(88 < share < 99 for share in choice["coverage_by_modality"].values())
    assert "mean" not in auto.models_
    for weights in choice["weights"].values():
        assert set(weights) == set(auto.models_)
        assert sum(weights.values()) == pytest.approx(1)
        assert min(weights.values()) >= 0
    printed = capsys.readouterr().err
    assert "knn: held-out error" in printed
    assert "chosen: " in printed


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


def test_modalities_that_never_meet_leave_the_latent_model_out():
    z, _ = from_model(n=120)
    present = np.zeros((120, 3), bool)
    present[:60, :2] = True
    present[60:, 2] = True
    auto = AutoImputer(FAST).fit(z, present)
    assert "gaussian" not in auto.choice_["errors"]
    filled = auto.transform(z, present)
    assert all(np.isfinite(values).all() for values in filled.values())


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


# ---- candidates and states


def test_a_kernel_comes_back_as_it_was():
    z, present = three()
    z |= {"b": np.ones((60, 4))}  # nothing is learned about it
    imputer = KernelImputer("mean", False, 0.8, 0.5, 0.3, landmarks=20).fit(z, present)
    assert [model is None for model in imputer.models_] == [False, True, False]
    back = KernelImputer().set_state(imputer.get_state())
    for one, two in zip(imputer.impute(z, present, True), back.impute(z, present, True), strict=True):
        for name in z:
            np.testing.assert_array_equal(one[name], two[name])
    assert [model is None for model in back.models_] == [False, True, False]


def test_one_row_is_enough_to_begin():
    one = {"a": np.ones((1, 2)), "b": np.ones((1, 1))}
    with pytest.warns(UserWarning, match="only 0 blocks of rows"):
        imputer = AutoImputer().fit(one)
    assert list(imputer.refit(one).models_) == ["mean"]
    none = {name: values[:0] for name, values in one.items()}
    for call in (AutoImputer().fit, imputer.refit, MeanImputer().fit):
        with pytest.raises(InputError):
            call(none)


def test_a_candidate_is_fitted_quietly_and_with_the_seed(monkeypatch):
    class Loud(MeanImputer):
        def __init__(self, random_state=None):
            super().__init__()
            self.random_state = random_state

        def fit(self, z, present=None):
            warnings.warn("not converged", ConvergenceWarning, stacklevel=2)
            return super().fit(z, present)

    monkeypatch.setitem(IMPUTERS, "mean", Loud)
    z, present = three(12)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = Fitter(7).fit("mean", z, torch.from_numpy(present), {})
    assert model.random_state == 7
    visible = present.copy()
    visible[0, 0] = False
    tried = try_candidate("mean", Fitter(7), check(z, visible), torch.tensor([0, 3]), {})
    np.testing.assert_allclose(tried.guess[0][0], z["a"][1:].mean(0))
    np.testing.assert_allclose(tried.std[0][0], z["a"][1:].std(0))
    assert [len(guess) for guess in tried.guess] == [2, 2, 2]
    assert 0 < tried.seconds < 60


def test_values_inside_their_interval():
    imputer = AutoImputer()
    imputer.scale_ = np.array([[1.0, 9.0], [2.0, 9.0]])
    score = np.array([[1.95, 1.97], [3.91, 3.93], [0.0, 3.0]])
    assert imputer._covered(0, score, np.array([0, 1, 0])) == pytest.approx(50)
    assert imputer._covered(0, np.zeros((0, 2)), np.zeros(0, int)) is None
    assert (auto.LEVEL_ROWS, auto.LEAST_BLOCKS, auto.MOST_VALUES) == (400, 10, 20_000_000)


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
