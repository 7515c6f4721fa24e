"""The level of chance: against all orders of a few items, and against `retrieval` of random vectors."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from calmrl.metrics import retrieval
from calmrl.metrics.retrieve import chance, chance_level


@pytest.mark.parametrize("relevant", [None, "aabcc", "aaaaa", "abcde"])
@pytest.mark.parametrize("k", [1, 2, 5, 9])
def test_equals_the_share_of_orders(relevant, k):
    own = list(range(5)) if relevant is None else list(relevant)
    orders = list(permutations(own))
    hits = [query in order[:k] for query in own for order in orders]
    assert chance(5, relevant, ks=(k,))[f"R@{k}"] == pytest.approx(100 * np.mean(hits))


def test_random_vectors_reach_it():
    rng = np.random.default_rng(0)
    labels = [int(label) for label in rng.integers(0, 10, 3000)]
    found = retrieval(rng.normal(size=(3000, 8)), rng.normal(size=(3000, 8)), labels, labels)
    expected = chance(3000, labels)
    for metric in ("R@1", "R@5", "R@10"):
        assert found[metric] == pytest.approx(expected[metric], abs=3)


def test_levels_are_rounded_and_of_the_usual_ks():
    assert chance(30) == {"R@1": 3.333333333, "R@5": 16.666666667, "R@10": 33.333333333}


@pytest.mark.parametrize(
    ("k", "n", "own", "percent"),
    [
        (1, 4, 1.0, 25.0),
        (10, 7, 1.0, 100.0),
        (2, 4, 2.0, 100 * (1 - 2 / 4 * 1 / 3)),
        (3, 4, 2.0, 100.0),
        (1, 1, 1.0, 100.0),
    ],
)
def test_one_query_with_some_relevant_items(k, n, own, percent):
    assert chance_level(k, n, own) == pytest.approx(percent, abs=1e-9)
    assert chance_level(k, n) == pytest.approx(100 * min(1.0, k / n), abs=1e-9)
