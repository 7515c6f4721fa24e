"""Rows with the same value count as found: ranks, choice and what to expect."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from calmrl import Aligner
from calmrl.aligner.crossvalidation import FoldDirection, RelevantRanks, outcome, relevant_ranks
from calmrl.aligner.expected import Evidence, expectation
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.errors import InputError
from calmrl.metrics import retrieval
from tests.aligner.aligner_data import FAST, linear_rows
from tests.reference.aligner import relevant_hit_chance


def class_rows(seed=0, n=240, classes=12, noise=1.0):
    """(z, classes): rows of one class are near to each other, and each has something of its own."""
    rng = np.random.default_rng(seed)
    of = rng.integers(0, classes, n)
    beta = rng.normal(size=(classes, 4))[of] + 0.3 * rng.normal(size=(n, 4))
    z = {f"m{j}": beta @ rng.normal(size=(4, w)) + noise * rng.normal(size=(n, w)) for j, w in enumerate((12, 10))}
    return z, of


def test_ranks_by_hand():
    plane = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    asked = plane[[1, 0, 3, 2]]  # each row finds its twin first; the last one ties with row 0 for its own item
    present = torch.ones(4, 2, dtype=torch.bool)
    alone = outcome([asked, plane], present)[0, 1]
    pairs = outcome([asked, plane], present, np.array([7, 7, 9, 9]))[0, 1]
    assert alone.ranks.tolist() == [2, 2, 2, 3.5]
    assert pairs.ranks.tolist() == [1, 1, 1, 1]
    half = outcome([asked, plane], present, np.array([7, 7, -1, -1]))[0, 1]
    assert half.ranks.tolist() == [1, 1, 2, 3.5]


def test_ranks_are_those_of_retrieval_with_ids():
    z, of = class_rows(n=60)
    rng = np.random.default_rng(1)
    vectors = [torch.from_numpy(a @ rng.normal(size=(a.shape[1], 5))) for a in z.values()]
    unit = [v / v.norm(dim=1, keepdim=True) for v in vectors]
    mine = outcome(unit, torch.ones(60, 2, dtype=torch.bool), of)
    for a, b in ((0, 1), (1, 0)):
        scores = retrieval(unit[a], unit[b], of, of)
        assert_allclose(100 * np.mean(mine[a, b].ranks < 1.5), scores["R@1"])


def test_relevance_that_never_repeats_changes_nothing():
    z, present = linear_rows(n=120)
    search = {**FAST, "prior": "auto", "refine": "always"}
    plain = Aligner(**search).fit(z, present)
    for relevant in ([f"item {i}" for i in range(120)], [None] * 120, [*range(60), *[""] * 30, *[np.nan] * 30]):
        same = Aligner(**search).fit(z, present, relevant=relevant)
        assert same.choice_ == plain.choice_
        assert same.expected_ == plain.expected_
        assert same.expected(10) == plain.expected(10)
        assert np.array_equal(same.embed(z, present), plain.embed(z, present))


def test_a_column_equals_its_values_and_chunks_and_saving_keep_it(tmp_path):
    z, of = class_rows()
    features = FeatureSet(z, meta=meta_table(len(of), labels=[str(c) for c in of]))
    aligner = Aligner(**FAST).fit(features, relevant="labels")
    assert aligner.expected_ != Aligner(**FAST).fit(features).expected_
    assert Aligner(**FAST).fit(features, relevant="id").expected_ == Aligner(**FAST).fit(features).expected_
    assert Aligner(**FAST).fit(z, relevant=of).expected_ == aligner.expected_
    chunks = [({m: a[i : i + 60] for m, a in z.items()}, np.ones((60, 2), bool)) for i in range(0, 240, 60)]
    streamed = Aligner(**FAST).fit(chunks, relevant=of).expected_
    for key, row in aligner.expected_.items():
        assert_allclose(list(streamed[key].values()), list(row.values()), atol=1.5)
    aligner.save(tmp_path / "a")
    assert Aligner.load(tmp_path / "a").expected(30) == aligner.expected(30)


@pytest.mark.parametrize(("k", "n"), [(1, 20), (1, 7), (3, 10), (1, 2), (5, 12)])
def test_smaller_galleries_hold_fewer_relevant_items(k, n):
    rng = np.random.default_rng(k + n)
    scores = rng.normal(size=(6, 20))
    relevant = rng.random((6, 20)) < 0.3
    own = rng.integers(0, 20, 6)
    relevant[np.arange(6), own] = True
    found = relevant_ranks(*map(torch.from_numpy, (scores, relevant, own)))
    want = [relevant_hit_chance(scores[q], relevant[q], own[q], k, n, 3000, rng) for q in range(6)]
    assert_allclose(found.hits(k, n, np.full(6, 20)), want, atol=0.04)
    assert_allclose(found.relevant, relevant.sum(1))


def test_ties_are_shared_between_own_items_and_others():
    scores = torch.tensor([[0.5, 0.5, 0.5, 0.1]])
    relevant = torch.tensor([[True, True, False, False]])
    found = relevant_ranks(scores, relevant, torch.tensor([0]))
    assert_allclose(found.above, [[1 / 3]])
    ranks = outcome([torch.ones(4, 1).double()] * 2, torch.ones(4, 2).bool(), np.array([1, 1, 2, 3]), every=True)[0, 1]
    assert_allclose(ranks.own.above[:, 0] + 1, ranks.ranks)


def test_only_repeats_are_looked_at_closely():
    unit, present = [torch.eye(4).double()] * 2, torch.ones(4, 2, dtype=torch.bool)
    assert outcome(unit, present, np.arange(4), every=True)[0, 1].own is None
    assert outcome(unit, present, np.array([1, 1, 2, 3]))[0, 1].own is None
    assert outcome(unit, present, np.array([1, 1, 2, 3]), every=True)[0, 1].own.relevant.tolist() == [2, 2, 1, 1]
    present[:3, 1] = False
    assert list(outcome([unit[0], unit[1][:1]], present)) == [(1, 0)]  # a gallery of one finds nothing
    present[2, 1] = True
    assert outcome([unit[0], unit[1][:2]], present)[0, 1].gallery == 2


def test_folds_with_and_without_repeats_are_joined():
    several = RelevantRanks(np.array([[0.0, 3.0], [np.nan, 1.0]]), np.array([2, 1]), np.arange(2))
    parts = [FoldDirection(np.array([1.0, 2.0]), 10, several), FoldDirection(np.array([4.0]), 9)]
    evidence = Evidence.of(parts)
    assert_allclose(evidence.own.above[:, -1], [3, 1, 3])
    assert evidence.own.relevant.tolist() == [2, 1, 1]
    assert_allclose(evidence.recall(1, 9), (evidence.own.hits(1, 9, np.array([10, 10, 9]))).mean())
    row = expectation(evidence, 0.0, 1.0, 5)
    assert_allclose(row["own"], 1 + (1 * 4 / 9) / 3)


def test_recall_that_rises_with_the_gallery_stays_below_all():
    own = RelevantRanks(np.array([[0.0, 5.0]] * 4 + [[2.0, 30.0]]), np.full(5, 6), np.arange(5))
    evidence = Evidence(np.array([1.0, 1.0, 1.0, 1.0, 3.0]), np.full(5, 40), own)
    recalls = [evidence.recall(1, n) for n in (20, 40, 80, 4000)]
    assert recalls == sorted(recalls)
    assert recalls[-1] <= 1


def test_expected_recall_is_what_new_rows_measure():
    inside = []
    for seed in range(4):
        z, of = class_rows(seed, n=700)
        aligner = Aligner(**FAST).fit({name: a[:300] for name, a in z.items()}, relevant=of[:300])
        new = {name: aligner.embed({name: a[300:]}) for name, a in z.items()}
        for n in (40, 400):
            for key, expected in aligner.expected(n).items():
                asks, gives = key.split("->")
                measured = retrieval(new[asks][:n], new[gives][:n], of[300 : 300 + n], of[300 : 300 + n])["R@1"]
                inside.append(expected["low"] <= measured <= expected["high"])
                assert_allclose(expected["own"], 1 + (n - 1) / 12, rtol=0.2)
    assert np.mean(inside) >= 0.8


def _two_relevant(hit, group):
    """60 queries, two relevant items each; a miss is beaten by three others."""
    above = np.where(hit, 0.0, 3.0)
    own = RelevantRanks(np.stack([above, above + 1], axis=1), np.full(60, 2), group)
    return Evidence(np.where(hit, 1.0, 4.0), np.full(60, 80), own)


def test_queries_that_fail_together_make_the_interval_wider():
    """The same hits: of whole groups, or of half of every group."""
    group = np.arange(60) // 10
    together, apart = (_two_relevant(hit, group) for hit in (group % 2 == 0, np.arange(60) % 2 == 0))
    wide, narrow = (expectation(evidence, 0.0, 1.0, 80) for evidence in (together, apart))
    assert wide["R@1"] == narrow["R@1"] == 50
    assert wide["high"] - wide["low"] > 2 * (narrow["high"] - narrow["low"])
    alone = expectation(_two_relevant(np.arange(60) % 2 == 0, np.arange(60)), 0.0, 1.0, 80)
    assert alone["high"] - alone["low"] == pytest.approx(narrow["high"] - narrow["low"], abs=1.5)


def test_queries_that_all_hit_still_leave_room():
    sure = expectation(_two_relevant(np.full(60, True), np.arange(60) // 10), 0.0, 1.0, 80)
    assert 90 < sure["low"] < sure["high"] == 100


@pytest.mark.parametrize("n", [40, 80, 300])
@pytest.mark.parametrize("rises", [False, True])
def test_influence_is_the_derivative_by_the_weight_of_a_query(n, rises):
    """By hand: recall with one query counted twice, to first order."""
    rng = np.random.default_rng(0)
    last = rng.integers(0, 12, 40).astype(float)
    first = last - rng.integers(0, 3, 40) if rises else np.full(40, np.nan)
    own = RelevantRanks(np.stack([np.maximum(first, 0), last], axis=1), np.full(40, 2), np.arange(40))
    evidence = Evidence(last + 1, np.full(40, 80), own)
    psi = evidence.influence(1, n)
    assert_allclose(psi.mean(), 0, atol=1e-12)
    rows = np.concatenate([np.tile(np.arange(40), 200), [7]])
    more = Evidence(
        evidence.ranks[rows],
        evidence.gallery[rows],
        RelevantRanks(own.above[rows], own.relevant[rows], own.group[rows]),
    )
    assert_allclose((more.recall(1, n) - evidence.recall(1, n)) * len(rows), psi[7], rtol=0.02, atol=1e-4)


def test_wrong_relevance_is_refused():
    z, _ = class_rows(n=40)
    with pytest.raises(InputError, match="relevant has 3 values but z has 40 rows; pass one value per row"):
        Aligner(**FAST).fit(z, relevant=["a", "b", "c"])
    with pytest.raises(InputError, match="relevant is 'text', the name of a column, but z is no feature set"):
        Aligner(**FAST).fit(z, relevant="text")
    with pytest.raises(InputError, match='no column "txt"'):
        Aligner(**FAST).fit(FeatureSet(z), relevant="txt")
