"""Factors on deviations, from held-out blocks."""

import numpy as np
import pytest

from calmrl.imputers import IMPUTERS, AutoImputer
from calmrl.imputers.base import imputer_card
from calmrl.imputers.calibration import coverage_fault, factors, levels, missing_counts
from calmrl.latent.em import Settings
from tests.support.latent_data import from_model

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


def test_what_is_missing_decides_the_mix():
    """Few blocks of a number lean on all, and the rest is weighted as the missing blocks are, not the held-out ones."""
    rng = np.random.default_rng(1)
    sizes = {1: 1.6, 2: 0.8}
    scores, sources = held_out(rng, {1: 10, 2: 400}, 400, sizes)
    empty = np.zeros((0, 4)), np.zeros(0, int)
    missing = np.array([[0, 0, 0], [900, 0, 0], [100, 0, 0], [0, 0, 0]])
    factor = factors([scores, empty[0], empty[0]], [sources, empty[1], empty[1]], missing)[:, 0]
    fresh, count = held_out(rng, {1: 900, 2: 100}, 50, sizes)
    covered = (fresh <= REACH * factor[count][:, None]).mean()
    assert covered == pytest.approx(0.9, abs=0.01)
    assert 1.2 < factor[1] / factor[2] < 0.8 * sizes[1] / sizes[2]  # ten blocks are not trusted alone


def test_modalities_share_how_scores_grow():
    """Ten blocks each of ten modalities say together what ten blocks alone do not."""
    rng = np.random.default_rng(4)
    one, sources = held_out(rng, {1: 10, 2: 100}, 100, {1: 1.6, 2: 0.8})
    empty = np.zeros((0, 4)), np.zeros(0, int)
    missing = np.ones((11, 10), int)
    alone = factors([one] + [empty[0]] * 9, [sources] + [empty[1]] * 9, missing)[:, 0]
    together = factors([one] * 10, [sources] * 10, missing)[:, 0]
    assert alone[1] / alone[2] < 1.75
    assert 1.75 < together[1] / together[2] < 2.1


def test_nothing_missing_takes_the_held_out_blocks_as_they_are():
    rng = np.random.default_rng(2)
    scores, sources = held_out(rng, {2: 3000}, 5, {2: 1.3})
    factor = factors([scores] * 3, [sources] * 3, np.zeros((4, 3), int))
    np.testing.assert_allclose(factor[2], 1.3, rtol=0.03)


def test_levels_are_ratios_of_deviations():
    rng = np.random.default_rng(3)
    trial = rng.uniform(0.5, 2, size=(500, 4))
    count = rng.integers(1, 3, 500)
    final = trial / np.where(count == 1, 1.0, 1.5)[:, None]
    final[:, 0] *= 1e6  # a column that seemed constant
    ratio = levels([trial, trial], [final, trial], [count, count])
    np.testing.assert_allclose(ratio[1:3, 0], [1.0, 1.5], rtol=0.04)
    np.testing.assert_allclose(ratio[:, 1], 1.0)


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
