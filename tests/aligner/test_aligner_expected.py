"""What is expected of new items, number by number from the definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import betabinom, hypergeom

from calmrl.aligner.crossvalidation import BEFORE, FoldDirection, RelevantRanks, at_most, relevant_ranks
from calmrl.aligner.expected import Evidence, dispersion, expectation, learning_gain

RANKS = np.array([1.0, 1.0, 2.0, 3.5, 1.0, 9.0, 30.0, 1.5, 4.0, 12.0])


def alone(gallery=40):
    return Evidence(RANKS, np.full(10, gallery))


def several(group=(0, 0, 0, 1, 1, 1, 2, 2, 2, 2), gallery=40):
    """Two relevant items for most queries, the own row the worse one."""
    first = np.where(np.arange(10) % 3 == 0, np.nan, np.maximum(RANKS - 2, 0))
    own = RelevantRanks(np.stack([first, RANKS - 1], axis=1), np.where(np.isnan(first), 1, 2), np.array(group))
    return Evidence(RANKS, np.full(10, gallery), own)


def moved(p, gain):
    odds = p / (1 - p) * np.exp(gain)
    return odds / (1 + odds)


def clipped(share, n):
    return min(max(share, 0.5 / (n + 1)), 1 - 0.5 / (n + 1))


def twin(evidence, gain, more, n):
    """The module's text, for one direction."""
    seen, queries = int(evidence.gallery[0]), len(evidence.ranks)
    raw = clipped(evidence.recall(1, n), queries)
    p = moved(raw, gain)
    tenth = moved(clipped(evidence.recall(10, n), queries), gain)
    if evidence.own is None:
        variance = p * (1 - p) * (more / queries + (more - 1) / n)
    else:
        psi = evidence.influence(1, n)
        each = (psi**2).sum() / queries**2
        labels = sorted(set(evidence.own.group.tolist()))
        sums = [psi[evidence.own.group == label].sum() for label in labels]
        ratio = sum(total**2 for total in sums) / queries**2 * len(sums) / (len(sums) - 1) / each
        more = max(more, 1.0, ratio)
        slope = p * (1 - p) / (raw * (1 - raw))
        variance = more * max(slope**2 * each, p * (1 - p) / queries) + p * (1 - p) * (more - 1) / n
    variance += (0.5 * gain * p * (1 - p)) ** 2
    if n > seen:
        variance += (0.5 * (moved(clipped(evidence.recall(1, seen), queries), gain) - p)) ** 2
    size = max(1.0, p * (1 - p) / variance - 1)
    low, high = betabinom.ppf([0.05, 0.95], n, p * size, (1 - p) * size)
    row = {"R@1": 100 * p, "R@10": 100 * max(p, tenth) if n > 10 else 100.0}
    row |= {"low": 100 * low / n, "high": 100 * high / n, "n": n}
    if evidence.own is not None:
        row["own"] = 1 + ((evidence.own.relevant - 1) * (n - 1) / (seen - 1)).mean()
    return row


@pytest.mark.parametrize("n", [2, 10, 11, 25, 40, 41, 200])
@pytest.mark.parametrize(("gain", "more"), [(0.0, 1.0), (0.4, 1.0), (0.0, 2.5), (0.7, 1.3)])
@pytest.mark.parametrize("make", [alone, several])
def test_expectation_is_that_of_the_text(make, gain, more, n):
    found, want = expectation(make(), gain, more, n), twin(make(), gain, more, n)
    assert found.keys() == want.keys()
    assert_allclose(list(found.values()), list(want.values()), rtol=1e-9)


def test_without_a_size_it_is_the_one_that_was_seen():
    mixed = Evidence(RANKS, np.array([40] * 4 + [50] * 6))
    assert expectation(mixed, 0.0, 1.0, None)["n"] == 50
    assert expectation(alone(), 0.0, 1.0, None) == expectation(alone(), 0.0, 1.0, 40)


@pytest.mark.parametrize("make", [alone, several])
@pytest.mark.parametrize("k", [1, 3])
def test_recall_beyond_what_was_seen_is_a_power(make, k):
    evidence = make()
    now, before = evidence.recall(k, 40), evidence.recall(k, 20)
    slope = np.log(now / before) / np.log(2)
    assert now < before
    assert_allclose(evidence.recall(k, 160), now * 4**slope)
    assert_allclose(evidence.recall(k, 41), now * (41 / 40) ** slope)


def test_recall_that_rises_continues_its_misses():
    own = RelevantRanks(np.array([[0.0, 5.0]] * 4 + [[2.0, 30.0]]), np.full(5, 6), np.arange(5))
    evidence = Evidence(np.array([1.0, 1.0, 1.0, 1.0, 3.0]), np.full(5, 40), own)
    now, before = evidence.recall(1, 40), evidence.recall(1, 20)
    assert now > before
    slope = np.log((1 - now) / (1 - before)) / np.log(2)
    assert_allclose(evidence.recall(1, 120), 1 - (1 - now) * 3**slope)


@pytest.mark.parametrize("gallery", [2, 3])
def test_galleries_too_small_for_a_slope(gallery):
    """Of 2 items no smaller gallery is left to compare with; of 3 there is one of 2."""
    evidence = Evidence(np.array([1.0, 2.0]), np.full(2, gallery))
    now = evidence.recall(1, gallery)
    assert now == 0.5
    if gallery == 2:
        assert evidence.recall(1, 100) == now
        assert_allclose(evidence.influence(1, 100), [0.5, -0.5])
    else:
        before = 0.75  # the second query is beaten by one of two others
        assert_allclose(evidence.recall(1, 2), before)
        assert_allclose(evidence.recall(1, 9), now * 3 ** (np.log(now / before) / np.log(1.5)))


def test_nothing_found_stays_nothing():
    never = Evidence(np.full(4, 40.0), np.full(4, 40))
    assert never.recall(1, 40) == never.recall(1, 400) == 0
    assert_allclose(never.influence(1, 400), 0)
    assert never.inflation(1, 400) == (0.0, 1.0)


def test_everything_found_stays_everything():
    always = Evidence(np.ones(4), np.full(4, 40))
    assert always.recall(1, 40) == always.recall(1, 400) == 1
    assert_allclose(always.influence(1, 400), 0)


def test_queries_of_one_group_vary_together():
    evidence = several()
    psi = evidence.influence(1, 30)
    each, more = evidence.inflation(1, 30)
    assert_allclose(each, (psi**2).sum() / 100)
    sums = [psi[:3].sum(), psi[3:6].sum(), psi[6:].sum()]
    assert_allclose(more, max(1, np.square(sums).sum() / 100 * 3 / 2 / each))
    assert several(np.zeros(10, int)).inflation(1, 30)[1] == 1  # one group sums to nothing
    assert alone().inflation(1, 30)[1] == 1


def test_growth_at_its_limits():
    def outcomes(rank):
        return [{(0, 1): FoldDirection(np.full(10, rank), 50)}]

    gain = np.log(3)
    assert learning_gain(outcomes(4.0), outcomes(2.0), 1, 1.5) == 0
    assert learning_gain(outcomes(4.0), outcomes(2.0), 2, 1.0) == 0
    assert_allclose(learning_gain(outcomes(4.0), outcomes(2.0), 3, 1.5), gain / 6)
    assert learning_gain(outcomes(4.0), outcomes(1.0), 2, 1.5) == 0  # nothing is left to gain
    assert learning_gain(outcomes(1.0), outcomes(2.0), 2, 1.5) == 0
    assert learning_gain([{}], outcomes(2.0), 2, 1.5) == 0
    assert learning_gain(outcomes(2.0), [{}], 2, 1.5) == 0


def test_dispersion_at_its_limits():
    def fold(*ranks):
        return {(0, 1): FoldDirection(np.array(ranks, dtype=float), 50)}

    assert dispersion([]) == 1
    assert dispersion([fold(1, 9)]) == 1  # one fold says nothing
    assert dispersion([fold(1, 1), fold(1, 1)]) == 1
    assert dispersion([fold(9, 9), fold(9, 9)]) == 1
    # shares 1 and 0 of two queries each: 2 (1/4 + 1/4) / (1/4)
    assert_allclose(dispersion([fold(1, 1), fold(9, 9)]), 4)
    assert_allclose(dispersion([fold(1, 1.49), fold(1.5, 9)]), 4)  # a tie of two is no hit
    both = [fold(1, 1) | {(1, 0): FoldDirection(np.array([1.0, 9.0]), 50)}, fold(9, 9)]
    assert_allclose(dispersion(both), 4)  # a direction of one fold does not count


@pytest.mark.parametrize("draws", [0, 1, 5, 9, 50])
@pytest.mark.parametrize("k", [0, 2])
def test_at_most(k, draws):
    items, marked = np.array([9.0, 9.0, 9.0, 4.0, -1.0, 0.0]), np.array([0.0, 3.0, 3.5, 4.0, 0.0, 0.0])

    def exact(n, m):
        return hypergeom.cdf(k, n, min(m, n), min(draws, n))

    want = [exact(9, 0), exact(9, 3), (exact(9, 3) + exact(9, 4)) / 2, exact(4, 4), 1.0, 1.0]
    assert_allclose(at_most(k, items, marked, draws), want)


def test_where_everything_else_is_relevant():
    """The own row is the last of all, and nothing is left that could stand above it."""
    scores = torch.arange(4, dtype=torch.float64)[None]
    found = relevant_ranks(scores, torch.ones(1, 4, dtype=torch.bool), torch.tensor([0]))
    for n in (2, 3, 4):
        assert found.hits(1, n, np.array([4])).tolist() == [1.0]


def test_folds_are_joined_with_groups_of_their_own():
    wide = RelevantRanks(np.array([[0.0, 1.0, 3.0]]), np.array([3]), np.array([4]))
    slim = RelevantRanks(np.array([[2.0], [5.0]]), np.array([1, 1]), np.array([0, 1]))
    empty = RelevantRanks(np.zeros((0, 1)), np.zeros(0, int), np.zeros(0, int))
    joined = RelevantRanks.join([wide, empty, slim, wide])
    assert_allclose(joined.above, [[0, 1, 3], [np.nan, np.nan, 2], [np.nan, np.nan, 5], [0, 1, 3]])
    assert joined.relevant.tolist() == [3, 1, 1, 3]
    assert joined.group.tolist() == [4, 5, 6, 11]


def brute(scores, relevant, own):
    """(others above each relevant item at or above the own one, ties in random order), best first."""
    levels = sorted({s for s, r in zip(scores, relevant, strict=True) if r and s > scores[own]}, reverse=True)
    rows = []
    for level in [*levels, scores[own]]:
        above = sum(s > level and not r for s, r in zip(scores, relevant, strict=True))
        tied = sum(s == level and not r for s, r in zip(scores, relevant, strict=True))
        alike = sum(s == level and r for s, r in zip(scores, relevant, strict=True))
        places = range(1, alike + 1) if level > scores[own] else [1]
        rows += [above + tied * place / (alike + 1) for place in places]
    return rows


def test_others_above_relevant_items_with_ties():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, size=(40, 9)).astype(float)
    relevant = rng.random((40, 9)) < 0.4
    own = rng.integers(0, 9, 40)
    relevant[np.arange(40), own] = True
    found = relevant_ranks(*map(torch.from_numpy, (scores, relevant, own)))
    assert found.above.shape[1] == max(len(brute(*row)) for row in zip(scores, relevant, own, strict=True))
    for row in range(40):
        above = found.above[row]
        assert_allclose(above[~np.isnan(above)], brute(scores[row], relevant[row], own[row]))
    assert found.group.tolist() == relevant.argmax(1).tolist()


def test_many_relevant_items_are_cut_off():
    n = BEFORE + 5
    scores = torch.arange(n, 0, -1, dtype=torch.float64)[None]
    relevant = torch.ones(1, n, dtype=torch.bool)
    assert relevant_ranks(scores, relevant, torch.tensor([n - 1])).above.shape == (1, BEFORE + 1)
    assert BEFORE == 32
