"""Which blocks are hidden, and what follows from how they were guessed."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.imputers import IMPUTERS, AutoImputer
from calmrl.imputers.base import imputer_card
from calmrl.imputers.stacking import (
    Guesses,
    Stack,
    factors,
    hidden_blocks,
    levels,
    missing_counts,
    simplex_weights,
)
from calmrl.latent.em import Settings
from calmrl.latent.held_out import coverage_fault
from tests.support.latent_data import from_model


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


@pytest.mark.parametrize(
    ("one", "both", "hidden"),
    [(0, 10, 5), (0, 30, 15), (0, 60, 30), (0, 150, 60), (0, 600, 144), (200, 400, 120), (100, 20, 10)],
)
def test_how_many_blocks_are_hidden(one, both, hidden):
    """12 % of the blocks, sixty where that is less than 30 %, in half of the rows that have both at most."""
    present = np.ones((one + both, 2), bool)
    present[:one, 1] = False
    found = hidden_blocks(present, np.random.default_rng(0))
    assert found.sum() == hidden
    assert (found.sum(1) <= 1).all()
    assert not (one and found[:, 0].any())  # what is left is a pattern that occurs


# ---- factors on deviations

REACH = 1.6448536269514722


def test_missing_blocks_are_counted_by_what_the_row_has():
    present = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]], bool)
    np.testing.assert_array_equal(missing_counts(present), [[0, 0, 0], [0, 1, 1], [1, 0, 1], [0, 0, 0]])


def held_out(rng, counts, width, sizes):
    """Scores of blocks whose deviations are too small by `sizes[s]`, `counts[s]` blocks each."""
    sources = np.concatenate([np.full(n, s) for s, n in counts.items()])
    size = np.array([sizes[s] for s in sources])
    return np.abs(rng.normal(size=(len(sources), width))) * size[:, None], sources


def test_intervals_cover_for_every_number_of_modalities():
    rng = np.random.default_rng(0)
    sizes = {1: 1.6, 2: 0.8}
    scores, sources = held_out(rng, {1: 2000, 2: 3000}, 5, sizes)
    missing = np.array([[0, 0, 0], [50, 1, 1], [10, 1, 1], [0, 0, 0]])
    empty = np.zeros((0, 4)), np.zeros(0, int)
    factor = factors([scores, empty[0], empty[0]], [sources, empty[1], empty[1]], missing)
    assert factor.shape == (4, 3)
    np.testing.assert_allclose(factor[1:3, 0], [1.6, 0.8], rtol=0.03)
    np.testing.assert_array_equal(factor[:, 1:], 1.0)  # nothing was held out there


def test_nothing_missing_takes_the_held_out_blocks_as_they_are():
    rng = np.random.default_rng(2)
    scores, sources = held_out(rng, {2: 3000}, 5, {2: 1.3})
    factor = factors([scores] * 3, [sources] * 3, np.zeros((4, 3), int))
    np.testing.assert_allclose(factor[2], 1.3, rtol=0.03)


def test_a_last_fit_that_is_too_sure_is_corrected(monkeypatch):
    """The last fit saw the held-out blocks; what was checked counts."""
    z, present = from_model(n=400)
    plain = AutoImputer(["knn"]).fit(z, present).impute(z, present, return_std=True)[1]
    seen = []
    fit, fill = IMPUTERS["knn"].fit, IMPUTERS["knn"]._fill

    def remember(self, z, present=None):
        seen.append(self)
        return fit(self, z, present)

    def surer(self, views, with_std):
        filled, std = fill(self, views, with_std)
        return filled, [s * (0.5 if self is seen[-1] and len(seen) > 1 else 1.0) for s in std]

    monkeypatch.setattr(IMPUTERS["knn"], "fit", remember)
    monkeypatch.setattr(IMPUTERS["knn"], "_fill", surer)
    std = AutoImputer(["knn"]).fit(z, present).impute(z, present, return_std=True)[1]
    for name in z:
        np.testing.assert_allclose(std[name], plain[name], rtol=1e-9)


@pytest.mark.parametrize(
    ("covered", "fault"),
    [(89.99, "too narrow"), (90.0, None), (95.0, None), (98.0, None), (98.01, "too wide"), (0.0, "too narrow")],
)
def test_what_is_called_wrong(covered, fault):
    assert coverage_fault(covered) == fault


def lean(score, blocks):
    return np.quantile(score, 0.9) ** (blocks / (blocks + 20)) if blocks else 1.0


def test_factors_are_those_of_the_text():
    rng = np.random.default_rng(0)
    sources = [rng.integers(1, 3, size=30), rng.integers(0, 3, size=25)]
    scores = [np.abs(rng.normal(size=(len(s), d))) * (1 + s[:, None]) for s, d in zip(sources, (4, 3), strict=True)]
    missing = np.array([[0, 5], [7, 2], [3, 0]])
    alike = [score / np.quantile(score, 0.9) for score in scores]
    shared = np.ones(3)
    for s in range(3):
        own = np.concatenate([score[count == s].ravel() for score, count in zip(alike, sources, strict=True)])
        shared[s] = lean(own, sum((count == s).sum() for count in sources))
    want = np.ones((3, 2))
    for m in range(2):
        even = scores[m] / shared[sources[m]][:, None]
        even /= np.quantile(even, 0.9)
        growth = shared.copy()
        for s in set(sources[m].tolist()):
            growth[s] *= lean(even[sources[m] == s], (sources[m] == s).sum())
        flat = (scores[m] / growth[sources[m]][:, None]).ravel()
        weight = [missing[s, m] / (sources[m] == s).sum() for s in sources[m] for _ in range(scores[m].shape[1])]
        order = np.argsort(flat)
        reached = np.cumsum(np.array(weight)[order])
        want[:, m] = growth * flat[order][reached >= 0.9 * reached[-1]][0] / REACH
    np.testing.assert_allclose(factors(scores, sources, missing), want)


def test_levels_are_those_of_the_text():
    rng = np.random.default_rng(0)
    count = np.array([1] * 6 + [2] * 3)
    before, after = rng.uniform(1, 2, size=(9, 4)), rng.uniform(1, 2, size=(9, 4))
    gap = np.log(before / after)
    nothing = np.zeros((0, 2))
    found = levels([before, nothing, nothing], [after, nothing, nothing], [count, np.zeros(0, int), np.zeros(0, int)])
    pooled = np.median(gap)
    one = np.exp((6 * np.median(gap[:6]) + 20 * pooled) / 26)
    two = np.exp((3 * np.median(gap[6:]) + 20 * pooled) / 23)
    np.testing.assert_allclose(found[:, 0], [np.exp(pooled), one, two, np.exp(pooled)])
    np.testing.assert_array_equal(found[:, 1:], 1.0)


def test_what_the_card_of_an_imputer_says():
    widths = {"a": 3, "b": 2}
    plain = imputer_card(IMPUTERS["knn"](7), widths)
    assert plain.title == "KNNImputer: a, b"
    assert plain.choice == {"n_neighbors": 7}
    assert (plain.quality, plain.widths) == ([], widths)
    assert plain.quality_note.startswith("Not measured.")
    chosen = AutoImputer()
    chosen.choice_ = {"held_out": 60, "error_by_modality": {"a": 0.5, "b": None}, "coverage_by_modality": {"a": 95.0}}
    card = imputer_card(chosen, widths)
    assert card.quality == [
        {"modality": "a", "error": 0.5, "inside 95 % intervals, %": 95.0},
        {"modality": "b", "error": None, "inside 95 % intervals, %": None},
    ]
    assert card.quality_note == "On 60 held-out blocks; 1 is the error of the column means."
    assert "verbose" not in card.choice
    kernel = IMPUTERS["kernel"]()
    kernel.choice_ = {"a": {"rows": 9, "error": 1.0}, "b": {"error": 0.25}}
    card = imputer_card(kernel, widths)
    assert card.quality == [{"modality": "a", "error": 1.0}, {"modality": "b", "error": 0.25}]
    assert card.quality_note.startswith("Leave-one-out error on the training rows;")
    kernel.choice_ = {"a": {"rows": 9}}
    assert imputer_card(kernel, widths).quality == []
    gaussian = IMPUTERS["gaussian"]("auto")
    gaussian.settings_ = Settings(5)
    assert imputer_card(gaussian, widths).choice["latent_dim (used)"] == 5
    assert imputer_card(gaussian, widths).choice["latent_dim"] == "auto"
