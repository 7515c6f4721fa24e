"""The measures against slow twins and by hand; what must hold whatever the data."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers import MeanImputer, RidgeImputer
from calmrl.metrics.measures import (
    FEW,
    alignment,
    anchor_shift_rows,
    coverage,
    imputation_error,
    modality_gap,
    remarks,
    robustness,
    row,
    uniformity,
)
from calmrl.workflows.compare import plan
from tests.reference import measures as slow

NAMES = ("image", "text", "audio")


def views(seed=0, n=40, d=4, share=0.8, positive=False):
    """Three modalities with a common part; NaN where missing."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(n, d)) + 1
    z = {m: common + 0.5 * rng.normal(size=(n, d)) for m in NAMES}
    z = {m: np.abs(v) for m, v in z.items()} if positive else z
    present = rng.random((n, 3)) < share
    present[~present.any(1), 0] = True
    return z, present


def masked(z, present):
    return {m: np.where(present[:, [j]], v, np.nan) for j, (m, v) in enumerate(z.items())}


def table(rows):
    assert all(set(one) == {"task", "metric", "value", "n"} for one in rows)
    return {(one["task"], one["metric"]): one["value"] for one in rows}


def test_imputation_error_equals_the_twin():
    z, present = views()
    held, there = views(seed=1, n=30)
    imputer = RidgeImputer().fit(masked(z, present))
    rows = imputation_error(imputer, masked(held, there))
    found = table(rows)
    assert len(found) == 3 * (2 + 1) * 3
    for task in {one["task"] for one in rows}:
        sources, target = task.split("->")
        sources = sources.split(",")
        able = there[:, [NAMES.index(m) for m in (*sources, target)]].all(1)
        filled = imputer.transform({m: held[m][able] for m in sources})[target]
        for metric, value in slow.errors(filled, held[target][able]).items():
            assert found[task, metric] == pytest.approx(value)
        assert {one["n"] for one in rows if one["task"] == task} == {able.sum()}


def test_the_mean_scores_one_and_a_direction_without_rows_is_left_out_or_refused():
    z, _ = views()
    imputer = MeanImputer().fit(z)
    assert all(
        v == pytest.approx(1) for (_, metric), v in table(imputation_error(imputer, z)).items() if metric == "nmse"
    )
    two = np.ones((40, 3), bool)
    two[:, 2] = False
    assert {task for task, _ in table(imputation_error(imputer, z, two))} == {"image->text", "text->image"}
    with pytest.raises(InputError, match="text->audio: 0 rows"):
        imputation_error(imputer, z, two, [(["text"], "audio")])
    with pytest.raises(InputError, match="must be different"):
        imputation_error(imputer, z, None, [(["text"], "text")])


def test_two_rows_are_enough_to_measure_an_error_and_equal_ones_have_no_spread():
    z = {"a": np.ones((2, 3)), "b": np.array([[1.0, 2.0], [3.0, 2.0]]), "c": np.full((2, 2), 4.0)}
    found = table(imputation_error(MeanImputer().fit(z), z, directions=[(["a"], "b"), ("a", "c")]))
    assert found == pytest.approx(
        {
            ("a->b", "mse"): 0.5,
            ("a->b", "mse_random"): 2,
            ("a->b", "nmse"): 1,
            ("a->c", "mse"): 0,
            ("a->c", "mse_random"): 0,
        }
    )
    tiny = {name: 0.01 * values for name, values in z.items()}
    assert table(imputation_error(MeanImputer().fit(tiny), tiny, directions=[("a", "b")]))[
        "a->b", "nmse"
    ] == pytest.approx(1)
    one = {name: values[:1] for name, values in z.items()}
    assert imputation_error(MeanImputer().fit(z), one) == []
    with pytest.raises(InputError, match="a->b: 1 row has all of these modalities; at least two are needed"):
        imputation_error(MeanImputer().fit(z), one, directions=[(["a"], "b")])


@pytest.mark.parametrize(
    "wanted", [([], "text"), (["smell"], "text"), (["text"], "smell"), (["image", "text"], "text")]
)
def test_directions_that_cannot_be_measured(wanted):
    z, _ = views()
    with pytest.raises(
        InputError, match="cannot be measured; sources and target must be different modalities among image"
    ):
        imputation_error(MeanImputer().fit(z), z, directions=[wanted])


@pytest.mark.parametrize("tensors", [False, True])
def test_coverage_equals_the_twin(tensors):
    z, present = views(n=80)
    hidden = np.random.default_rng(3).random(present.shape) < 0.3
    hidden[np.arange(80), present.argmax(1)] = False
    kind = torch.from_numpy if tensors else np.asarray
    z, there, hide = {m: kind(v) for m, v in z.items()}, kind(present), kind(hidden)
    imputer = GaussianImputer(latent_dim=3, tol=1e-3, random_state=0).fit(z, there)
    rows = coverage(imputer, z, there, hide)
    filled, std = imputer.impute(z, kind(present & ~hidden), return_std=True)
    at = [(present & hidden)[:, j] for j in range(3)]
    flat = [np.concatenate([np.asarray(a[m])[at[j]].ravel() for j, m in enumerate(NAMES)]) for a in (z, filled, std)]
    for one in rows:
        level = float(one["task"]) / 100
        assert one["value"] == pytest.approx(slow.covered(*flat, norm.ppf((1 + level) / 2)))
        assert one["n"] == len(flat[0])
    assert [one["task"] for one in rows] == ["50", "80", "90", "95"]
    assert rows[2]["value"] == pytest.approx(90, abs=8)
    with pytest.raises(InputError, match=r"hidden has shape \(80, 2\)"):
        coverage(imputer, z, there, hide[:, :2])


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6), share=st.floats(0.3, 0.9), renormalize=st.booleans())
def test_anchor_shift_equals_the_twin_and_stays_within_its_bounds(seed, share, renormalize):
    z, present = views(seed, n=12, share=share, positive=True)
    present[0] = [True, False, True]
    filled = {m: np.where(present[:, [j]], v, 0.1 + 0.9 * v) for j, (m, v) in enumerate(z.items())}
    found = table(anchor_shift_rows(z, present, filled, renormalize=renormalize))
    sides = [list(zip(*side.values(), strict=True)) for side in (z, filled)]
    before, after = slow.shifts(*sides, present.tolist(), renormalize)
    assert found["observed", "anchor_shift"] == pytest.approx(before)
    assert found["calibrated", "anchor_shift"] == pytest.approx(after, abs=1e-9)
    for task in ("observed", "calibrated"):
        low, shift, high = (found[task, f"anchor_shift{end}"] for end in ("_low", "", "_high"))
        assert low <= shift <= high + 1e-9


def test_anchor_shift_takes_an_imputer_and_perfect_completion_ends_it():
    z, present = views(n=30)
    imputer = RidgeImputer().fit(z)
    rows = anchor_shift_rows(z, present, imputer)
    assert rows == anchor_shift_rows(z, present, imputer.transform(z, present))
    assert rows == anchor_shift_rows(z, present, imputer, renormalize=True)
    assert rows != anchor_shift_rows(z, present, imputer, renormalize=False)
    assert {one["n"] for one in rows} == {(~present.all(1)).sum()}
    found = table(anchor_shift_rows(z, present, z))
    assert found["calibrated", "anchor_shift"] == pytest.approx(0, abs=1e-9)
    assert found["calibrated", "anchor_shift_high"] == pytest.approx(0, abs=1e-9)
    with pytest.raises(InputError, match="nothing is missing"):
        anchor_shift_rows(z, np.ones_like(present), z)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_geometry_equals_the_twins(seed):
    z, present = views(seed, n=15)
    found = table(modality_gap(masked(z, present)) + alignment(z, present) + uniformity(z, present))
    for j, a in enumerate(NAMES):
        assert found[a, "uniformity"] == pytest.approx(slow.uniformity(z[a][present[:, j]]))
        for k in range(j + 1, 3):
            both = present[:, j] & present[:, k]
            x, y = z[a][both], z[NAMES[k]][both]
            assert found[f"{a}|{NAMES[k]}", "modality_gap"] == pytest.approx(slow.gap(x, y))
            assert found[f"{a}|{NAMES[k]}", "alignment"] == pytest.approx(slow.alignment(x, y))


def test_geometry_by_hand_and_in_blocks(monkeypatch):
    same = {"image": np.tile([3.0, 0.0], (4, 1)), "text": np.tile([0.0, 2.0], (4, 1))}
    assert table(modality_gap(same)) == pytest.approx({("image|text", "modality_gap"): 2**0.5})
    assert table(alignment(same)) == pytest.approx({("image|text", "alignment"): 2})
    assert table(uniformity(same)) == pytest.approx({(m, "uniformity"): 0 for m in same})
    z, present = views()
    whole = uniformity(z, present)
    monkeypatch.setattr(
        "calmrl.metrics.measures.blocks_of_rows", lambda n, _: zip(range(n), range(1, n + 1), strict=True)
    )
    assert table(uniformity(z, present)) == pytest.approx(table(whole))
    gone = np.array([[True, False], [False, True], [True, False], [True, False]])
    assert modality_gap(same, gone) == []
    assert [one["task"] for one in uniformity(same, gone)] == ["image"]
    with pytest.raises(InputError, match="image has width 2 and text 3"):
        modality_gap({"image": np.ones((4, 2)), "text": np.ones((4, 3))})


def test_separability_is_chance_without_a_gap_and_full_with_one():
    rng = np.random.default_rng(0)
    z = {"image": rng.normal(size=(300, 6)), "text": rng.normal(size=(300, 6))}
    found = table(modality_gap(z, separability=True))
    assert found["image|text", "modality_separability"] == pytest.approx(50, abs=8)
    apart = {"image": z["image"], "text": z["text"] + 9}
    assert table(modality_gap(apart, separability=True))["image|text", "modality_separability"] > 98
    few = modality_gap({m: v[:5] for m, v in apart.items()}, separability=True)
    assert [one["n"] for one in few] == [5, 5]
    with pytest.raises(InputError, match="5 folds"):
        modality_gap({m: v[:4] for m, v in z.items()}, separability=True)


def test_robustness_asks_for_every_rate_and_seed():
    asked = []

    def measure(rate, seed):
        asked.append((rate, seed))
        return [{"task": "text->image", "metric": "R@1", "value": 100 * (1 - rate), "n": 7}]

    rows = robustness(measure, seeds=(0, 1))
    assert len(rows) == len(asked) == 20
    assert rows[3] == {"task": "text->image", "metric": "R@1", "value": 90.0, "n": 7, "rate": 0.1, "seed": 1}
    assert {one["rate"] for one in rows} == {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
    assert [one["seed"] for one in robustness(measure, rates=(0.0,))] == [0]
    for bad in (1.0, -0.1):
        with pytest.raises(InputError, match=rf"missing rates lie between 0 and 1 .*; got {bad}"):
            robustness(measure, rates=(0.5, bad))


# ---- remarks


def test_imputation_worse_than_the_mean_is_named_by_direction():
    (said,) = remarks([row("a->b", "nmse", 1.24, 90), row("b->a", "nmse", 0.9, 90), row("a,c->b", "nmse", 1.9, 90)])
    assert "a->b (normalised error 1.24), a,c->b (1.90)" in said
    assert "b->a" not in said


def test_as_good_as_the_mean_is_no_fault():
    assert remarks([row("a->b", "nmse", 1.0, 90), row("a->b", "mse", 7.0, 90)]) == []
    (said,) = remarks([row("a->b", "nmse", 1.01, 90)])
    assert said.endswith("for a->b (normalised error 1.01): do not use these imputed vectors")


def test_intervals_that_do_not_cover():
    assert "hold 65 % of the true values: they are too narrow" in remarks([row("95", "coverage", 65.0, 900)])[0]
    assert "too wide" in remarks([row("95", "coverage", 99.5, 900)])[0]
    assert remarks([row("90", "coverage", 65.0, 900)]) == []  # the level that is judged is 95


def test_few_queries_say_what_one_hit_is_worth():
    (said,) = remarks([row("a->b", "R@1", 14.0, 7), row("b->a", "R@1", 14.0, 300), row("average", "R@1", 14.0, 14)])
    assert said == "few queries: a->b (7); with 7, one hit more or less moves R@1 by 14 points"


def test_evaluate_and_compare_call_the_same_numbers_of_queries_few():
    assert plan.FEW is FEW
    assert remarks([row("a->b", "R@1", 14.0, FEW)]) == []
    assert remarks([row("a->b", "R@1", 14.0, FEW - 1)]) != []
