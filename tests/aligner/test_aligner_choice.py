"""What is chosen, what is expected, and rows that are hard to choose from."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from calmrl import Aligner
from calmrl.aligner.choose import SEARCH_ROWS, search_sample
from calmrl.aligner.crossvalidation import RARE, FoldDirection, Rows, folds_of, sample, score
from calmrl.aligner.expected import Evidence, dispersion, expectation, learning_gain
from calmrl.aligner.refine import Walk, steps_worth
from calmrl.aligner.space import Candidate, Space
from calmrl.datasets import load_dataset
from calmrl.latent.rows import open_source
from calmrl.metrics import retrieval
from tests.aligner.aligner_data import FAST, linear_rows
from tests.reference.aligner import hit_chance


def test_linear_features_are_chosen_for_noisy_nearly_linear_rows():
    data = load_dataset("world", n=800, private=8, noise=0.5, nonlinear=0.6)
    aligner = Aligner(latent_dim=64, prior=300.0, refine="never").fit(data)
    assert aligner.choice_["features"] == "linear"
    table = aligner.choice_["candidates"]
    order = [(row["folds"], row["score"]) for row in table]
    assert order == sorted(order, reverse=True)
    assert {row["features"] for row in table} == {"linear", "kernel"}
    chosen = {key: aligner.choice_[key] for key in ("features", "unit_rows", "whitening", "prior", "score")}
    assert chosen == {key: table[0][key] for key in chosen}


def test_kernel_features_are_chosen_for_curved_rows():
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, size=(400, 2))
    z = {
        "a": np.concatenate([np.cos(angle), np.sin(angle)], axis=1),
        "b": np.concatenate([np.cos(2 * angle), np.sin(2 * angle), np.cos(angle[:, ::-1] + angle)], axis=1),
    }
    z = {name: a + 0.02 * rng.normal(size=a.shape) for name, a in z.items()}
    assert Aligner(latent_dim=32, prior=30.0, refine="never").fit(z).choice_["features"] == "kernel"


def test_what_was_given_is_not_searched():
    aligner = Aligner(**{**FAST, "prior": "auto"}).fit(*linear_rows())
    tried = aligner.choice_["candidates"]
    assert {170.0, 300.0, 550.0} <= {row["prior"] for row in tried}
    assert {(row["features"], row["unit_rows"], row["whitening"], row["latent_dim"]) for row in tried} == {
        ("linear", False, 0.5, 6)
    }


def test_the_score_is_the_reciprocal_rank_times_the_log_of_the_gallery():
    one = {(0, 1): FoldDirection(np.array([1.0, 2.0]), 10), (1, 0): FoldDirection(np.array([4.0]), 5)}
    two = {(0, 1): FoldDirection(np.array([1.0]), 20)}
    forth = (np.log(10) * (1 + 1 / 2) + np.log(20)) / 3
    assert_allclose(score([one, two]), (forth + np.log(5) / 4) / 2)


def test_groups_stay_in_one_fold_and_patterns_are_spread():
    rng = np.random.default_rng(0)
    present = torch.ones(300, 2, dtype=torch.bool)
    present[:60, 1] = False
    groups = rng.integers(0, 100, 300)
    home = folds_of(Rows([], present, groups), 3, 0)
    assert all(len(set(home[groups == g])) == 1 for g in set(groups))
    alone = folds_of(Rows([], present, np.arange(300)), 3, 0)
    assert np.bincount(alone[:60]).tolist() == [20, 20, 20]
    assert np.bincount(alone).tolist() == [100, 100, 100]


def test_copies_of_items_promise_too_much_unless_they_are_grouped():
    z, _ = linear_rows(n=120, noise=2.0)
    twice = {name: np.concatenate([a, a]) for name, a in z.items()}
    free = Aligner(**FAST).fit(twice).expected(40)
    grouped = Aligner(**FAST).fit(twice, groups=[f"item {i}" for i in range(120)] * 2).expected(40)
    assert np.mean([grouped[key]["R@1"] for key in free]) < np.mean([free[key]["R@1"] for key in free])


@pytest.mark.parametrize(
    ("rank", "gallery", "k", "n"), [(3, 20, 1, 8), (1, 20, 1, 20), (15, 20, 10, 12), (9, 12, 2, 3)]
)
def test_recall_in_a_smaller_gallery_is_that_of_random_ones(rank, gallery, k, n):
    want = hit_chance(rank, gallery, k, n, 4000, np.random.default_rng(0))
    assert_allclose(Evidence(np.array([float(rank)]), np.array([gallery])).recall(k, n), want, atol=0.03)


def test_recall_in_a_larger_gallery_keeps_falling():
    evidence = Evidence(np.array([1.0, 1.0, 2.0, 5.0, 30.0]), np.full(5, 50))
    recalls = [evidence.recall(1, n) for n in (10, 25, 50, 100, 200)]
    assert recalls == sorted(recalls, reverse=True)
    chance = Evidence(np.arange(1.0, 101.0), np.full(100, 100))
    assert_allclose(chance.recall(1, 400), 1 / 400)


def test_more_rows_help_less_and_less():
    small = [{(0, 1): FoldDirection(np.full(10, 4.0), 50)}]
    large = [{(0, 1): FoldDirection(np.full(10, 2.0), 50)}]
    gain = np.log(3)  # logit(1/2) - logit(1/4)
    assert_allclose(learning_gain(small, large, 2, 1.5), gain / 3)
    assert_allclose(learning_gain(small, large, 2, 1e9), gain)
    assert learning_gain(large, small, 2, 1.5) == 0


def test_the_interval_can_hold_every_share_that_n_queries_can_measure():
    always = expectation(Evidence(np.ones(200), np.full(200, 50)), 0.0, 1.0, None)
    assert always["high"] == 100
    never = expectation(Evidence(np.full(200, 50.0), np.full(200, 50)), 0.0, 1.0, None)
    assert never["low"] == 0
    assert always["n"] == never["n"] == 50


def test_folds_that_differ_by_more_than_chance_widen_the_interval():
    hits, misses = np.ones(50), np.full(50, 9.0)
    alike = [{(0, 1): FoldDirection(np.concatenate([hits, misses]), 100)}] * 3
    apart = [{(0, 1): FoldDirection(ranks, 50)} for ranks in (hits, misses, misses)]
    assert dispersion(alike) == 1
    assert_allclose(dispersion(apart), 50 * (4 / 9 + 1 / 9 + 1 / 9) / (1 / 3 * 2 / 3) / 2)
    evidence = Evidence(np.concatenate([hits, misses]), np.full(100, 50))
    narrow, wide = (expectation(evidence, 0.0, more, None) for more in (1.0, 3.0))
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


def test_expected_recall_is_what_new_rows_measure():
    inside = []
    for seed in range(4):
        z, _ = linear_rows(seed, n=700, noise=1.2, rate=0.0)
        train = {name: a[:350] for name, a in z.items()}
        aligner = Aligner(**FAST).fit(train)
        new = {name: aligner.embed({name: a[350:]}) for name, a in z.items()}
        for key, expected in aligner.expected(350).items():
            asks, gives = key.split("->")
            measured = retrieval(new[asks], new[gives])["R@1"]
            inside.append(expected["low"] <= measured <= expected["high"])
    assert np.mean(inside) >= 0.8


def test_refinement_follows_the_gradient_and_is_kept_only_where_it_helps():
    z, present = linear_rows(n=240, noise=1.0)
    never, always = (Aligner(**{**FAST, "refine": how}).fit(z, present) for how in ("never", "always"))
    assert never.choice_["refine_steps"] == 0
    assert always.choice_["refine_steps"] in (6, 12, 25, 50)
    assert np.abs(never.embed(z) - always.embed(z)).max() > 1e-4
    assert [row["steps"] for row in always.choice_["refinement"]][:2] == [6, 12]


class FakeFold:
    """A fold whose heads start at the best place, so that every step away from it loses."""

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        eye = torch.eye(8, dtype=torch.float64)
        beta = torch.randn(60, 8, generator=generator, dtype=torch.float64)
        wrong = torch.randn(60, 8, generator=generator, dtype=torch.float64)
        present = torch.ones(60, 2, dtype=torch.bool)
        self.train, self.held = Rows([], present, np.arange(60)), Rows([], present, np.arange(60))
        self.parts = [beta, wrong], [beta, beta]
        self.spaces = {CANDIDATE: Space([eye, eye], [eye[0] * 0] * 2, [eye, eye])}

    def whitened(self, candidate):
        return self.parts


CANDIDATE = Candidate("linear", False, 0.0, 8, 1.0)


def test_refinement_that_loses_on_held_out_rows_is_not_made():
    start = [{(0, 1): FoldDirection(np.ones(60), 60), (1, 0): FoldDirection(np.ones(60), 60)} for _ in range(2)]
    folds = [FakeFold(0), FakeFold(1)]
    assert steps_worth(folds, CANDIDATE, start, "auto", 0)[0] == 0
    assert steps_worth(folds, CANDIDATE, start, "always", 0)[0] > 0


def test_a_step_lowers_the_loss_of_its_pairs():
    fold = FakeFold(0)
    train, _ = fold.whitened(CANDIDATE)
    start = fold.spaces[CANDIDATE]
    after = Walk(start, train, fold.train.present, 0).to(100)
    own = [(s.unit(0, train[0]) * s.unit(1, train[1])).sum(1).mean() for s in (start, after)]
    assert own[1] > own[0]


# ---- rows that are hard to choose from


def test_fewer_rows_than_latents():
    z, present = linear_rows(n=30)
    aligner = Aligner(refine="never").fit(z, present)
    assert np.isfinite(aligner.embed(z)).all()


def test_constant_and_duplicate_rows():
    z, _ = linear_rows(n=60, rate=0.0)
    z["m0"][:] = 1.0
    z["m1"][30:] = z["m1"][:30]
    z["m2"][30:] = z["m2"][:30]
    aligner = Aligner(latent_dim=16, prior=30.0, refine="never").fit(z)
    assert np.isfinite(aligner.embed(z)).all()


def test_a_modality_in_three_rows_is_kept_with_a_warning():
    z, _ = linear_rows(n=90, rate=0.0)
    z["m2"][3:] = np.nan
    with pytest.warns(match="'m2' is observed in 3 of 90 rows only"):
        aligner = Aligner(latent_dim=16, prior=30.0, refine="never").fit(z)
    assert np.isfinite(aligner.embed({"m2": z["m2"][:3]})).all()
    assert "m0->m1" in aligner.expected_


def test_modalities_that_never_meet_are_aligned_through_a_third():
    z, _ = linear_rows(n=300, noise=0.2, rate=0.0)
    apart = {name: a.copy() for name, a in z.items()}
    apart["m0"][:150] = np.nan
    apart["m2"][150:] = np.nan
    with pytest.warns(match=r"no row has both m0 and m2: they are aligned through other modalities only"):
        aligner = Aligner(**FAST).fit(apart)
    assert set(aligner.expected_) == {"m0->m1", "m1->m0", "m1->m2", "m2->m1"}
    measured = retrieval(aligner.embed({"m0": z["m0"]}), aligner.embed({"m2": z["m2"]}))
    assert measured["R@1"] > 50


def test_too_few_rows_to_choose_are_said():
    z, _ = linear_rows(n=4, rate=0.0)
    with pytest.warns(match="nothing was chosen by cross-validation and nothing is expected: 4 rows are too few"):
        aligner = Aligner().fit(z)
    assert aligner.expected_ == {}
    assert aligner.choice_["candidates"] == []
    assert aligner.choice_["score"] is None


def test_all_else_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Aligner(**FAST).fit(*linear_rows())


# ---- rows that are looked at


def test_all_rows_in_order_from_chunks():
    chunks = []
    for start in (0, 5):
        rows = np.arange(start, start + 5, dtype=float)[:, None]
        z = {"a": rows, "b": rows + 0.5} if start else {"a": rows, "b": np.full((5, 1), np.nan)}
        chunks.append((z, np.column_stack([np.ones(5, bool), np.full(5, start > 0)])))
    source = open_source(chunks, None)
    rows = sample(source, None, 10**9, 0, relevant=np.arange(10) * 3)
    assert len(rows) == 10
    assert rows.groups.tolist() == list(range(10))
    assert rows.relevant.tolist() == [3 * row for row in range(10)]
    assert_array_equal(rows.z[0][:, 0], np.arange(10))
    assert_array_equal(rows.of(1)[:, 0], np.arange(5, 10) + 0.5)
    assert rows.present[:, 1].tolist() == [False] * 5 + [True] * 5
    named = sample(source, np.arange(10) // 2, 10**9, 0)
    assert named.groups.tolist() == [row // 2 for row in range(10)]
    assert named.relevant is None
    some = rows.take(torch.tensor([7, 1]))
    assert (some.groups.tolist(), some.relevant.tolist(), some.z[0][:, 0].tolist()) == ([7, 1], [21, 3], [7, 1])


@pytest.mark.parametrize(("has", "whole"), [(RARE, True), (RARE + 1, False)])
def test_rare_modalities_are_looked_at_whole(has, whole):
    n = 3000
    present = np.column_stack([np.ones(n, bool), np.arange(n) < has])
    source = open_source({"a": np.ones((n, 1)), "b": np.ones((n, 1))}, present)
    rows = sample(source, None, 300, 0)
    found = int(rows.present[:, 1].sum())
    assert (found == has) == whole
    others = len(rows) - found
    assert abs(others - (n - has) / 10) < 60
    assert RARE == 500


def test_the_search_takes_whole_rows_up_to_its_limit():
    def rows(n):
        return Rows([torch.arange(n)[:, None]], torch.ones(n, 1, dtype=torch.bool), np.arange(n) // 2)

    assert SEARCH_ROWS == 2400
    exact = rows(2400)
    assert search_sample(exact, 0) is exact
    part = search_sample(rows(2402), 0)
    assert len(part) == 2400
    assert (np.diff(part.z[0][:, 0]) > 0).all()  # in their order
    assert (np.bincount(part.groups)[np.unique(part.groups)] == 2).all()
    assert not np.array_equal(part.groups, search_sample(rows(2402), 1).groups)
