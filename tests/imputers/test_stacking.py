"""Which blocks are hidden, and what follows from how they were guessed."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.imputers.stacking import Guesses, Stack, hidden_blocks, simplex_weights


def stack(residuals, totals=(200.0, 50.0), deviations=None):
    """Candidates by their residuals, two modalities of 3 and 2 columns."""
    made = Stack(list(totals), [len(r) for r in next(iter(residuals.values()))], [3, 2])
    for name, parts in residuals.items():
        spread = deviations[name] if deviations else [np.ones_like(r) for r in parts]
        made.guesses[name] = Guesses(list(parts), spread)
    return made


def drawn(seed=0, blocks=(40, 30)):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, d)) for n, d in zip(blocks, (3, 2), strict=True)]


def test_errors_are_shares_of_the_means():
    a = drawn()
    made = stack({"a": a})
    by_modality = [np.square(a[0]).sum() / 200, np.square(a[1]).sum() / 50]
    np.testing.assert_allclose(made.errors("a"), by_modality)
    entries = np.array([40 * 3, 30 * 2])  # a modality counts by its values
    np.testing.assert_allclose(made.error("a"), by_modality @ entries / entries.sum())
    weights = made.weigh()
    assert weights.chosen == ["a"]
    assert weights.error == pytest.approx(made.error("a"))
    np.testing.assert_allclose(made.averaged_errors(weights), by_modality)


def test_errors_of_small_values():
    small = [1e-3 * part for part in drawn()]
    made = stack({"a": small}, totals=(2e-4, 5e-5))
    weights = made.weigh()
    np.testing.assert_allclose(made.averaged_errors(weights), made.errors("a"))
    np.testing.assert_allclose(made.errors("a"), stack({"a": drawn()}).errors("a"))
    assert made.error("a") == pytest.approx(stack({"a": drawn()}).error("a"))


def test_what_does_not_vary_does_not_count():
    made = stack({"a": drawn()}, totals=(200.0, 0.0))
    assert made.errors("a")[1] is None
    assert made.error("a") == pytest.approx(made.errors("a")[0])
    weights = made.weigh()
    assert made.averaged_errors(weights)[1] is None
    nothing = stack({"a": drawn()}, totals=(0.0, 0.0))
    assert nothing.error("a") == 0
    empty = stack({"a": drawn(blocks=(40, 0))}, totals=(200.0, 0.0))
    assert empty.error("a") == pytest.approx(empty.errors("a")[0])


@pytest.mark.parametrize(("gain", "joins"), [(0.002, False), (0.004, True)])
def test_another_candidate_has_to_lower_the_error_by_three_in_a_thousand(gain, joins):
    """At a right angle to the first and 1 / gain - 1 times as large, it takes the weight `gain` off the squared error."""
    a = [np.zeros((40, 3)), np.zeros((40, 2))]
    b = [np.zeros((40, 3)), np.zeros((40, 2))]
    for part_a, part_b in zip(a, b, strict=True):
        part_a[:20], part_b[20:] = 1.0, np.sqrt(1 / gain - 1)
    made = stack({"a": a, "b": b}, totals=(120.0, 80.0))
    weights = made.weigh()
    assert weights.chosen == (["a", "b"] if joins else ["a"])
    if joins:
        np.testing.assert_allclose(weights.weight, np.tile([[1 - gain], [gain]], (1, 2)), rtol=1e-4)
        assert weights.error == pytest.approx((1 - gain) * made.error("a"))


def test_weights_of_a_modality_lean_on_those_of_all():
    a, b = drawn(0), drawn(1)
    a[1] *= 3  # worse in the second modality
    made = stack({"a": a, "b": b})
    weights = made.weigh()
    assert sorted(weights.chosen) == ["a", "b"]
    entries = np.array([120, 60]) / 180
    share = entries / [200, 50]
    order = [{"a": a, "b": b}[name] for name in weights.chosen]
    both = [np.stack([part.ravel() for part in pair]) for pair in zip(*order, strict=True)]
    grams = [s * (r @ r.T) for s, r in zip(share, both, strict=True)]
    pooled = sum(grams) / 70
    want = np.stack([simplex_weights(g + 20 * pooled) for g in grams], axis=1)
    np.testing.assert_allclose(weights.weight, want, atol=1e-6)
    wrong = sum(w @ g @ w for w, g in zip(want.T, grams, strict=True))
    assert weights.error == pytest.approx(wrong, rel=1e-5)


def test_scores_use_the_weights_of_the_other_half():
    a, b = drawn(0), drawn(1)
    deviations = {"a": [np.full_like(r, 0.5) for r in a], "b": [np.full_like(r, 2.0) for r in b]}
    made = stack({"a": a, "b": b}, deviations=deviations)
    weights = made.weigh()
    order = [{"a": a, "b": b}[name] for name in weights.chosen]
    entries = np.array([120, 60]) / 180
    share = entries / [200, 50]
    flat = [np.stack([r[m].ravel() for r in order]) for m in range(2)]
    pooled = sum(s * (r @ r.T) for s, r in zip(share, flat, strict=True)) / 70
    spread = {"a": 0.25, "b": 4.0}
    for m, found in enumerate(made.scores(weights)):
        error = np.empty_like(a[m])
        for half in (0, 1):
            other = np.stack([r[m][1 - half :: 2].ravel() for r in order])
            weight = simplex_weights(share[m] * (other @ other.T) + 20 * pooled)
            error[half::2] = sum(w * r[m][half::2] for w, r in zip(weight, order, strict=True))
        variance = sum(weights.weight[c, m] * spread[name] for c, name in enumerate(weights.chosen))
        np.testing.assert_allclose(found, np.abs(error) / np.sqrt(variance), rtol=1e-5)


def test_weights_of_candidates_that_are_never_wrong():
    np.testing.assert_allclose(simplex_weights(np.zeros((2, 2))), [0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(simplex_weights(np.diag([1.0, 3.0])), [0.75, 0.25], rtol=1e-5)
    np.testing.assert_allclose(simplex_weights(np.array([[1.0, 2.0], [2.0, 9.0]])), [1, 0], atol=1e-6)


@pytest.mark.parametrize(("n", "hidden"), [(10, 5), (60, 30), (150, 60), (600, 144), (30, 15)])
def test_how_many_blocks_are_hidden(n, hidden):
    """Complete rows of two: 12 % of the blocks, sixty where that is less than 30 %, in half of the rows at most."""
    found = hidden_blocks(np.ones((n, 2), bool), np.random.default_rng(0))
    assert found.sum() == hidden
    assert (found.sum(1) <= 1).all()


def test_rows_with_one_modality_lose_nothing():
    present = np.eye(2, dtype=bool)[np.arange(40) % 2]
    assert not hidden_blocks(present, np.random.default_rng(0)).any()
    present[:4] = True
    hidden = hidden_blocks(present, np.random.default_rng(0))
    assert hidden.any(1).sum() == 2  # half of the four that have both
    assert (hidden[:4].sum(1) <= 1).all()
    assert not hidden[4:].any()


def test_the_candidate_that_helps_most_joins_first():
    """The third takes away what is wrong with the first; the second only a little."""
    rng = np.random.default_rng(0)
    first, noise = rng.normal(size=(40, 5)), rng.normal(size=(40, 5))
    made = Stack([1000.0], [40], [5])
    guesses = {"first": first, "second": 1.5 * noise, "third": -1.2 * first + 0.01 * noise}
    for name, residuals in guesses.items():
        made.guesses[name] = Guesses([residuals], [np.ones((40, 5))])
    assert made.weigh().chosen == ["first", "third"]


@pytest.mark.parametrize(("one", "both", "hidden"), [(200, 400, 120), (100, 20, 10)])
def test_how_many_blocks_of_incomplete_data_are_hidden(one, both, hidden):
    """12 % of a thousand blocks; or half of the rows that have both."""
    present = np.ones((one + both, 2), bool)
    present[:one, 1] = False
    found = hidden_blocks(present, np.random.default_rng(0))
    assert found.sum() == hidden
    assert not found[:, 0].any()  # what is left is a pattern that occurs
