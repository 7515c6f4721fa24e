"""Intervals and paired tests against SciPy, slow twins and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from calmrl.errors import InputError
from calmrl.metrics.significance import against_best, holm, mean_interval, paired_bootstrap, paired_bootstraps, paired_t
from tests.reference import statistics as slow

numbers = st.floats(-1e3, 1e3)


@settings(deadline=None, max_examples=50)
@given(st.lists(numbers, min_size=2, max_size=12))
def test_interval_equals_the_twin(values):
    mean, half = slow.t_interval(values, stats.t.ppf(0.975, len(values) - 1))
    found = mean_interval(values)
    assert found.mean == pytest.approx(mean, abs=1e-9)
    assert found.half == pytest.approx(half, abs=1e-9)
    assert found.n == len(values)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=10))
def test_paired_t_equals_scipy(pairs):
    ours, theirs = map(list, zip(*pairs, strict=True))
    difference = np.subtract(ours, theirs)
    found = paired_t(ours, theirs)
    assert found.difference == pytest.approx(difference.mean())
    if difference.std() > 1e-6:
        assert found.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, abs=1e-9)
        assert found.low <= found.difference <= found.high
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high) or abs(found.p - 0.05) < 1e-6


def test_paired_t_where_nothing_varies():
    assert paired_t([1.0, 2.0], [1.0, 2.0]).p == 1
    assert paired_t([1.5, 2.5], [1.0, 2.0]).p == 0
    assert paired_t([0.3, 0.3 + 1e-17], [0.1 + 0.2, 0.3]).p == 1  # equal but for rounding
    assert paired_t([3.0], [1.0]) == (2.0, None, None, None)


def test_bootstrap_has_the_spread_of_its_twin():
    rng = np.random.default_rng(0)
    ours, theirs = rng.random((3, 12)) + 0.1, rng.random((3, 12))
    expected = slow.bootstrap(ours.tolist(), theirs.tolist(), 4000, 0)
    found = paired_bootstrap(ours, theirs, draws=4000)
    low, high = np.quantile(expected, [0.025, 0.975])
    assert found.difference == pytest.approx((ours - theirs).mean())
    assert found.low == pytest.approx(low, abs=0.02)
    assert found.high == pytest.approx(high, abs=0.02)
    assert found.p == pytest.approx(2 * min(np.mean(np.less_equal(expected, 0)), 0.5), abs=0.03)


def test_bootstrap_of_no_difference_and_of_a_clear_one():
    hits = (np.random.default_rng(1).random((3, 200)) < 0.3).astype(float)
    same, clear = paired_bootstrap(hits, hits, 500), paired_bootstrap(hits + 0.5, hits, 500)
    assert (same.difference, same.p) == (0, 1)
    assert clear.p == pytest.approx(2 / 501)
    assert paired_bootstrap(hits, hits + 0.5, 500).p == clear.p
    assert paired_bootstrap(hits[0], hits[1], 500) == paired_bootstrap(hits[:1], hits[1:2], 500)
    assert paired_bootstrap(hits[0], hits[1], 500, seed=1) != paired_bootstrap(hits[0], hits[1], 500, seed=2)


@pytest.mark.parametrize("entries", [1, 200 * 7, 200 * 500, 200 * 501])
def test_bootstrap_in_parts_makes_all_draws(monkeypatch, entries):
    hits = (np.random.default_rng(1).random((3, 200)) < 0.3).astype(float)
    monkeypatch.setattr("calmrl.metrics.significance.DRAW_ENTRIES", entries)
    draws = 5 if entries == 1 else 500
    assert paired_bootstrap(hits + 0.5, hits, draws).p == pytest.approx(2 / (draws + 1))
    whole = paired_bootstrap(hits[:1], hits[1:2], draws)
    assert whole.low <= whole.difference <= whole.high


@pytest.mark.parametrize("entries", [40 * 7, 1 << 22])
def test_several_bootstraps_share_their_draws(monkeypatch, entries):
    monkeypatch.setattr("calmrl.metrics.significance.DRAW_ENTRIES", entries)
    hits = (np.random.default_rng(2).random((3, 2, 40)) < 0.4).astype(float)
    groups = [query // 2 for query in range(40)]
    pairs = [(hits[0], hits[1]), (hits[2], hits[1]), (hits[1], hits[0])]
    alone = [paired_bootstrap(*pair, 300, 5, groups=groups) for pair in pairs]
    assert paired_bootstraps(pairs, 300, 5, groups=groups) == alone
    assert len(set(alone)) == 3
    for wrong in ([], [(hits[0], hits[1]), (hits[0][:1], hits[1][:1])]):
        with pytest.raises(InputError, match="pass at least one, all with the same seeds and queries"):
            paired_bootstraps(wrong)


def test_ten_thousand_draws_and_seed_0_unless_said_otherwise():
    ours, theirs = np.array([[1.0, 2.0, 4.0]]), np.zeros((1, 3))
    assert paired_bootstrap(ours, theirs).p == pytest.approx(2 / 10_001)
    many = np.random.default_rng(0).normal(size=(2, 40))
    assert paired_bootstrap(*many, 300) == paired_bootstrap(*many, 300, seed=0)
    assert paired_bootstrap(*many, 300) != paired_bootstrap(*many, 300, seed=1)


def test_differences_that_are_zero_but_for_rounding_are_on_both_sides():
    ours = np.full((2, 9), 1e-13)
    assert paired_bootstrap(ours, np.zeros((2, 9)), 50).p == 1
    assert paired_bootstrap(1e6 * ours + 1e6, np.full((2, 9), 1e6), 50).p == pytest.approx(2 / 51)
    assert paired_bootstrap(np.full((2, 9), 1e-11), np.zeros((2, 9)), 50).p == pytest.approx(2 / 51)


def test_bootstrap_draws_groups_as_a_whole():
    """Four copies of every query say nothing new, if they are drawn together."""
    rng = np.random.default_rng(3)
    ours, theirs = rng.normal(size=(2, 30)), rng.normal(size=(2, 30))
    plain = paired_bootstrap(ours, theirs, 2000)
    copies = [np.tile(side, 4) for side in (ours, theirs)]
    grouped = paired_bootstrap(*copies, 2000, groups=list(range(30)) * 4)
    assert grouped == pytest.approx(plain)
    apart = paired_bootstrap(*copies, 2000)
    assert apart.high - apart.low < 0.7 * (plain.high - plain.low)
    uneven = paired_bootstrap(ours, theirs, 500, groups=["a"] * 10 + list(range(20)))
    assert uneven.difference == pytest.approx(plain.difference)
    with pytest.raises(InputError, match="groups has 2 names but there are 30"):
        paired_bootstrap(ours, theirs, groups=["a", "b"])


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1), max_size=8))
def test_holm_equals_the_twin(p_values):
    found = holm(p_values)
    assert found == pytest.approx(slow.holm(p_values))
    assert all(found[name] >= p for name, p in p_values.items())


def test_against_the_best_baseline():
    values = {
        "pmrl": {0: 20.0, 1: 21.0, 2: 22.0},
        "gram": {0: 24.0, 1: 25.5, 2: 26.0},
        "calmrl": {0: 26.0, 1: 27.6, 2: 28.1},
        "closed": {1: 25.0, 2: 26.0, 3: 99.0},
        "late": {7: 1.0},
    }
    best, found = against_best(values, ["pmrl", "gram", "absent"])
    assert best == "gram"
    assert set(found) == {"calmrl", "closed"}
    raw = {
        m: paired_t([values[m][s] for s in on], [values["gram"][s] for s in on]).p
        for m, on in (("calmrl", (0, 1, 2)), ("closed", (1, 2)))
    }
    assert {m: one.p for m, one in found.items()} == pytest.approx(slow.holm(raw))
    assert found["calmrl"].difference == pytest.approx(2.0666667)
    assert against_best(values, ["pmrl", "gram"], higher=False)[0] == "pmrl"
    assert against_best(values, ["absent"]) == (None, {})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([]), "at least one"),
        (lambda: mean_interval([1.0, float("nan")]), "finite"),
        (lambda: paired_t([1, 2], [1, 2, 3]), "one of each per seed"),
        (lambda: paired_bootstrap(np.ones((2, 3)), np.ones((3, 2))), "seeds, queries"),
        (lambda: paired_bootstrap(np.full(3, np.nan), np.ones(3)), "NaN"),
        (lambda: paired_bootstrap(np.ones((2, 3, 4)), np.ones((2, 3, 4))), "seeds, queries"),
        (lambda: paired_bootstrap(np.ones((2, 0)), np.ones((2, 0))), r"ours has shape \(2, 0\)"),
        (lambda: mean_interval(np.ones((2, 2))), "values must be a list of finite numbers"),
        (lambda: paired_t([1.0], [np.inf]), "theirs must be a list of finite numbers"),
    ],
)
def test_errors(call, message):
    with pytest.raises(InputError, match=message):
        call()
