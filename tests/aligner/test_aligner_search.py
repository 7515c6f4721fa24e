"""The race between candidates."""

import numpy as np
import pytest

from calmrl import Aligner
from calmrl.aligner.choose import CandidateSearch, behind
from calmrl.aligner.crossvalidation import FoldDirection
from calmrl.aligner.space import make_grid
from calmrl.config import CompareConfig
from calmrl.training.methods import TRIALS
from calmrl.workflows.compare.plan import training_config, trials_of


def found(ranks, gallery=300):
    return {(0, 1): FoldDirection(np.asarray(ranks, dtype=float), gallery)}


def test_behind_is_clearly_worse_or_nowhere_better():
    rng = np.random.default_rng(0)
    ranks = rng.integers(1, 50, 300)
    assert behind(found(ranks + 5), found(ranks))
    assert behind(found(ranks), found(ranks))  # the first tried wins ties
    assert not behind(found(ranks), found(ranks + 5))
    assert not behind(found(rng.permutation(ranks)), found(ranks))  # a difference within noise
    assert not behind(found(ranks[:90] + 5), found(ranks[:90]))  # too few queries to say
    assert not behind({}, {})


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
            return found(np.where(np.arange(50) % 2 == 0, 2.0 - self.likes.get(candidate, 0), 3.0))

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


@pytest.mark.parametrize("most", [1, 2, 3, 5, 9])
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
