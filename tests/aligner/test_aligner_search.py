"""The race between candidates."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from calmrl import Aligner
from calmrl.aligner.choose import CandidateSearch, behind, choose
from calmrl.aligner.crossvalidation import FoldDirection, Rows
from calmrl.aligner.space import make_grid
from calmrl.config import CompareConfig
from calmrl.training.methods import TRIALS
from calmrl.workflows.compare.plan import training_config, trials_of


def found(ranks, gallery=300):
    return {(0, 1): FoldDirection(np.asarray(ranks, dtype=float), gallery)}


def test_behind_is_clearly_worse_or_nowhere_better():
    rng = np.random.default_rng(0)
    ranks = rng.integers(1, 50, 300)
    few, short = found(ranks[:90] + 5), found(ranks[:90])
    assert behind([found(ranks + 5)], [found(ranks)])
    assert behind([found(ranks)], [found(ranks)])  # the first tried wins ties
    assert not behind([found(ranks)], [found(ranks + 5)])
    assert not behind([found(rng.permutation(ranks))], [found(ranks)])  # a difference within noise
    assert not behind([few], [short])  # too few queries to say
    assert behind([few, few], [short, short, short])  # two folds are enough; the leader is ahead by one more
    assert not behind([], [])


class FakeFold:
    """Ranks that depend on the candidate: the smaller the whitening and the nearer the prior to 550, the better."""

    def __init__(self, seed):
        self.ranks = np.random.default_rng(seed).integers(1, 9, 400)
        self.evaluated = []

    def evaluate(self, candidate):
        self.evaluated.append(candidate)
        worse = (
            10 * candidate.whitening + abs(np.log(candidate.prior / 550)) / 10 + 5 * (candidate.features == "kernel")
        )
        return found(self.ranks + worse)


@pytest.fixture
def folds():
    return [FakeFold(seed) for seed in range(3)]


def test_candidates_behind_run_on_one_fold_and_the_winner_is_that_of_a_full_search(folds):
    search = CandidateSearch(folds, TRIALS)
    winner = search.run(make_grid("auto", "auto", "auto", "auto", "auto"))
    assert (winner.features, winner.whitening, winner.prior) == ("linear", 0.0, 550.0)
    assert len(search.tried[winner]) == 3
    assert all(len(outcomes) in (1, 3) for outcomes in search.tried.values())
    assert set(folds[0].evaluated) == set(search.tried)
    assert len(folds[1].evaluated) < len(folds[0].evaluated)
    assert folds[1].evaluated == folds[2].evaluated


def test_the_choice_without_a_fold_is_among_those_that_ran_on_all(folds):
    search = CandidateSearch(folds, TRIALS)
    search.run(make_grid("auto", "auto", "auto", "auto", "auto"))
    for fold in range(3):
        assert len(search.tried[search.best(without=fold)]) == 3
    kernel = search.best(features="kernel")  # none of them ran on all folds
    assert kernel.features == "kernel"
    assert len(search.tried[kernel]) == 1


def test_the_choice_without_a_fold_does_not_look_at_it():
    """The first fold prefers one candidate by far, the others agree on another."""
    grid = make_grid("linear", True, "auto", 64, 300.0)
    one, two, three = grid.whitenings(grid.first("linear", True))

    class Judge:
        def __init__(self, likes):
            self.likes = likes

        def evaluate(self, candidate):
            return found(np.where(np.arange(30) % 2 == 0, 2.0 - self.likes.get(candidate, 0), 3.0))

    search = CandidateSearch([Judge({one: 1.0}), Judge({two: 0.4}), Judge({two: 0.4})], 3)
    search.attempt([three, one, two])
    assert search.best() == one
    assert search.best(without=0) == two
    assert search.best(without=1) == one
    assert search.best(features="linear") == one


class CoupledFold(FakeFold):
    """With few noise rows fewer latents are better, with many more of them: only both together are best."""

    def evaluate(self, candidate):
        more = candidate.latent_dim > 64
        worse = 30 / candidate.prior + (0.02 if more else 0.0) - (0.1 if more and candidate.prior >= 1000 else 0.0)
        return found(self.ranks + worse + 5 * (candidate.features == "kernel"))


def test_parts_that_were_chosen_are_looked_at_again_after_the_others():
    search = CandidateSearch([CoupledFold(seed) for seed in range(3)], TRIALS)
    winner = search.run(make_grid("auto", "auto", 0.5, "auto", "auto"))
    assert (winner.features, winner.latent_dim, winner.prior) == ("linear", 128, 1800.0)


class WideFold(FakeFold):
    """Many latents and a weak prior are best together; each alone is worse than neither. A second space adds `gain`."""

    gain = 0.0

    def evaluate(self, candidate):
        wide = candidate.latent_dim > 256, candidate.prior <= 100
        gain = 0.0 if candidate.second is None else self.gain
        worse = (0.0 if all(wide) else 0.1 + 0.3 * any(wide)) + 5 * (candidate.features == "linear")
        return found(self.ranks + 1 + worse - gain)


def test_many_latents_under_a_weak_prior_are_tried_together():
    search = CandidateSearch([WideFold(seed) for seed in range(3)], TRIALS)
    winner = search.run(make_grid("auto", "auto", "auto", "auto", "auto"))
    assert (winner.features, winner.latent_dim, winner.prior, winner.second) == ("kernel", 512, 100.0, None)


@pytest.mark.parametrize(("latent_dim", "together"), [("auto", True), (64, False)])
def test_few_and_many_latents_stand_side_by_side_where_that_finds_more(monkeypatch, latent_dim, together):
    monkeypatch.setattr(WideFold, "gain", 0.3)
    search = CandidateSearch([WideFold(seed) for seed in range(3)], TRIALS)
    winner = search.run(make_grid("auto", "auto", "auto", latent_dim, "auto"))
    assert (winner.second is not None) is together  # a number of latents that was given is kept to
    if together:
        assert [(one.latent_dim, one.prior) for one in winner.parts] == [(256, 300.0), (512, 100.0)]
        assert all(one in search.tried for one in winner.parts)
        assert winner.row()["second"] == winner.second.row()


def test_very_few_candidates_are_kernel_features_under_two_priors_and_with_many_latents_then_linear_ones(folds):
    grid = make_grid("auto", "auto", "auto", "auto", "auto")
    search = CandidateSearch(folds, 4)
    assert search.run(grid).features == "linear"  # of these folds
    tried = [(one.features, one.latent_dim, one.prior) for one in search.tried]
    assert tried == [("kernel", 256, 300.0), ("kernel", 256, 1000.0), ("kernel", 512, 100.0), ("linear", 128, 300.0)]
    search = CandidateSearch([WideFold(seed) for seed in range(3)], 3)
    assert search.run(grid).latent_dim == 512
    fixed = CandidateSearch([FakeFold(seed) for seed in range(3)], 4)
    fixed.run(make_grid("auto", True, 0.5, 64, 30.0))  # what is given is kept to
    assert {(one.latent_dim, one.prior) for one in fixed.tried} == {(64, 30.0)}


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 9])
def test_never_more_candidates_than_allowed(folds, most):
    search = CandidateSearch(folds, most)
    winner = search.run(make_grid("auto", "auto", "auto", "auto", "auto"))
    assert len(search.tried) == most
    assert winner in search.tried


def test_a_comparison_tries_no_more_candidates_than_other_methods_have_trials():
    assert Aligner().candidates == TRIALS
    for trials in (3, TRIALS):
        config = CompareConfig.model_validate({"kind": "compare", "source": {"dataset": "stamps"}, "trials": trials})
        for _, changes in trials_of("aligner", 10, trials):
            assert training_config(config.only("stamps"), "", 0, changes).model.candidates == trials


def test_the_grid():
    grid = make_grid("auto", "auto", "auto", "auto", "auto")
    assert (grid.features, grid.unit_rows) == (("linear", "kernel"), (True, False))
    assert grid.whitening == {"linear": (0.5, 0.0, 0.75), "kernel": (0.5, 0.75)}
    assert grid.latent_dim == {"linear": (128, 64), "kernel": (256, 64)}
    assert grid.prior == (300.0, 30.0, 100.0, 170.0, 550.0, 1000.0, 1800.0)
    first = grid.first("kernel", False)
    assert first.row() == {
        "features": "kernel",
        "unit_rows": False,
        "whitening": 0.5,
        "latent_dim": 256,
        "prior": 300.0,
    }
    assert [one.prior for one in grid.priors(first)] == [170.0, 300.0, 550.0]
    lowest = grid.priors(grid.priors(grid.priors(grid.priors(first)[0])[0])[0])[0]
    assert [one.prior for one in grid.priors(lowest)] == [30.0, 100.0]
    assert [one.whitening for one in grid.whitenings(first)] == [0.5, 0.75]
    assert [one.latent_dim for one in grid.latents(first)] == [256, 64]
    assert [one.unit_rows for one in grid.scalings(first)] == [True, False]
    assert grid.wide_start("kernel", False) == [replace(first, latent_dim=512, prior=100.0)]
    assert make_grid("auto", "auto", "auto", "auto", 30.0).wide_start("linear", True)[0].row() == {
        "features": "linear",
        "unit_rows": True,
        "whitening": 0.5,
        "latent_dim": 256,
        "prior": 30.0,
    }
    fixed = make_grid("linear", False, 1, 7, 3)
    assert (fixed.features, fixed.unit_rows, fixed.prior) == (("linear",), (False,), (3.0,))
    assert (fixed.whitening["linear"], fixed.latent_dim["linear"]) == ((1.0,), (7,))
    assert fixed.wide_start("linear", False) == []


def race(worse, n=100, directions=1):
    """The leader finds everything second; of `mine`, so many queries find nothing."""
    mine = np.where(np.arange(n) < worse, 1e9, 2.0)
    leader = np.full(n, 2.0)
    return [[{(d, 9): FoldDirection(ranks, 50) for d in range(directions)}] for ranks in (mine, leader)]


def test_behind_by_three_standard_errors():
    assert not behind(*race(8))  # 0.040 against 3 x 0.0136
    assert behind(*race(9))  # 0.045 against 3 x 0.0143
    assert not behind(*race(50, n=99))  # too few queries
    assert behind(*race(4, directions=3))  # 0.020 against 3 x 0.0098 / sqrt(3)
    assert not behind(*race(2, directions=3))  # 0.010 against 3 x 0.0070 / sqrt(3)


# ---- the choice as a whole


class Counted:
    """A fold that remembers its rows; the better its candidate, the smaller the ranks."""

    made: ClassVar[list] = []

    def __init__(self, names, train, held, seed, landmarks):
        self.train, self.held, self.spaces = train, held, {}
        assert (names, seed, landmarks) == (["a", "b"], 5, 77)
        Counted.made.append(self)

    def evaluate(self, candidate):
        self.spaces[candidate] = None
        size = len(self.train)
        ranks = np.full(len(self.held), 2.0 if size > 20 else 4.0)
        return {(0, 1): FoldDirection(ranks, len(self.held))} if len(self.held) > 2 else {}


def choose_from(monkeypatch, n, total=90):
    monkeypatch.setattr("calmrl.aligner.choose.Fold", Counted)
    Counted.made = []
    rows = Rows([torch.arange(n)[:, None]] * 2, torch.ones(n, 2, dtype=torch.bool), np.arange(n))
    grid = make_grid("linear", True, 0.5, 64, 300.0)
    return choose(["a", "b"], rows, total, grid, 4, 3, 77, "never", 5), grid


def held(fold):
    return sorted(fold.held.groups.tolist())


def test_folds_of_the_choice(monkeypatch):
    choice, grid = choose_from(monkeypatch, 36)
    whole, smaller = Counted.made[:3], Counted.made[3:]
    assert sorted(row for fold in whole for row in held(fold)) == list(range(36))
    for fold in whole:
        assert sorted([*held(fold), *fold.train.groups.tolist()]) == list(range(36))
    for f, fold in enumerate(smaller):  # a third learns, another third is held out
        assert held(fold) == held(whole[f])
        assert sorted(fold.train.groups.tolist()) == held(whole[f - 1])
    # logit(1/2) - logit(1/4), from twice as many rows; the final fit has 90 instead of 24
    assert choice.gain == pytest.approx(np.log(3) * (1 - 24 / 90))
    assert choice.rows == 36
    assert choice.candidate == grid.first("linear", True)
    assert list(choice.evidence) == ["a->b"]
    assert choice.evidence["a->b"].ranks.tolist() == [2.0] * 36
    assert choice.dispersion == 1.0
    (score,) = choice.scores.values()
    assert score == (3, pytest.approx(np.log(12) / 2))
    summary = choice.summary(9)
    assert (summary["latent_dim"], summary["refine_steps"], summary["rows"]) == (9, 0, 36)
    assert summary["score"] == score[1]
    assert summary["candidates"] == [{**choice.candidate.row(), "score": score[1], "folds": 3}]


@pytest.mark.parametrize(
    ("n", "why"), [(5, "5 rows are too few to be split into 3 folds"), (6, "no held-out row has two")]
)
def test_nothing_to_choose_from(monkeypatch, n, why):
    """Two rows in every fold are enough to look, and here they find nothing."""
    with pytest.warns(UserWarning, match=f"nothing was chosen by cross-validation and nothing is expected: {why}"):
        choice, grid = choose_from(monkeypatch, n)
    assert choice.candidate == grid.first("linear", True)
    assert (choice.scores, choice.evidence, choice.gain, choice.dispersion, choice.rows) == ({}, {}, 0.0, 1.0, 0)
    assert choice.summary(3)["score"] is None
