"""Hiding modalities and reporting patterns."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl.data.hiding import MECHANISMS, hide
from calmrl.data.patterns import Completeness, completeness, pattern_table, patterns
from calmrl.errors import InputError
from tests.reference.missing import mcar


def options(kind: str, n: int, k: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    if kind == "source":
        return {"groups": [[j, (j + 1) % k] for j in range(k)]}
    if kind == "value":
        return {"values": {f"m{j}": rng.normal(size=(n, 3)) for j in range(k)}}
    return {}


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(sorted(MECHANISMS)),
    n=st.integers(1, 40),
    k=st.integers(1, 5),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_subset_and_something_left(kind: str, n: int, k: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    present = rng.random((n, k)) < 0.7
    before = present.copy()
    had = present.any(axis=1)
    many = present.sum(axis=1) > 1
    most = {"mcar": 1 - had.sum() / max(1, present.sum()), "one": many.mean(), "alone": many.mean(), "source": 1.0}
    rate = share * float(most.get(kind, most["mcar"]))
    more = {"complete": int(share * present.all(axis=1).sum())} if kind == "all-but" else options(kind, n, k, seed)
    left = hide(present, None if kind == "all-but" else rate, rng, kind, **more)
    assert np.array_equal(present, before)
    assert not (left & ~present).any()
    assert np.array_equal(left.any(axis=1), had)
    gone = int(present.sum() - left.sum())
    if kind in ("mcar", "value"):
        assert gone == round(rate * present.sum())
    if kind == "one":
        assert gone == round(rate * n)
        assert (present.sum(axis=1) - left.sum(axis=1)).max() <= 1


@pytest.mark.parametrize(("n", "k", "rate"), [(200, 4, 0.4), (51, 6, 0.7), (1000, 2, 0.5), (7, 3, 0.0)])
def test_mcar_is_the_procedure_by_hand(n: int, k: int, rate: float) -> None:
    ours = hide(np.ones((n, k), dtype=bool), rate, np.random.default_rng(1))
    assert np.array_equal(ours, mcar(n, k, rate, np.random.default_rng(1)))


def test_source_keeps_what_its_source_records() -> None:
    present = np.ones((3000, 3), dtype=bool)  # video, audio, text
    left = hide(present, 0.6, np.random.default_rng(0), "source", groups=[(0, 2), (1, 2)])
    counts = {p.modalities: p.rows for p in patterns(left, ["video", "audio", "text"])}
    assert set(counts) == {("video", "audio", "text"), ("video", "text"), ("audio", "text")}
    assert counts["video", "audio", "text"] == 1200
    assert abs(counts["video", "text"] - 900) < 100
    lonely = np.array([[True, False, False]] * 50)  # an item without audio and text can only come from the first source
    assert np.array_equal(hide(lonely, 1.0, np.random.default_rng(0), "source", groups=[(0, 2), (1, 2)]), lonely)
    assert np.array_equal(hide(lonely, 1.0, np.random.default_rng(0), "source", groups=[(1, 2)]), lonely)


def test_value_dependent_hides_large_values() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(5000, 3))
    left = hide(np.ones((5000, 3), dtype=bool), 0.3, rng, "value", values=scores)
    assert scores[~left].mean() > scores[left].mean() + 1
    flat = hide(np.ones((5000, 3), dtype=bool), 0.3, rng, "value", values=scores, strength=0.0)
    assert abs(scores[~flat].mean() - scores[flat].mean()) < 0.1
    z = {name: torch.from_numpy(rng.normal(size=(5000, 4))) for name in "abc"}
    means = [
        abs(float(array[~torch.from_numpy(left[:, j])].mean(0).abs().max()))
        for left in [hide(np.ones((5000, 3), dtype=bool), 0.3, np.random.default_rng(3), "value", values=z)]
        for j, array in enumerate(z.values())
    ]
    assert max(means) > 0.3  # under MCAR the largest of these is about 0.05


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rate": 0.8}, "24 of 30 blocks should be hidden but every row keeps one; use a rate of at most 0.667"),
        ({"rate": 2}, "between 0 and 1"),
        ({"kind": "mcra"}, 'unknown kind of missingness "mcra"; did you mean "mcar"'),
        ({"groups": [(0,)]}, 'has no option "groups"; it has none'),
        ({"kind": "source"}, "needs groups="),
        ({"kind": "source", "groups": [(0, 3)]}, r"columns \(0 to 2\)"),
        ({"kind": "value"}, "needs values="),
        ({"kind": "value", "values": np.zeros((3, 3))}, r"values have shape \(3, 3\)"),
        ({"kind": "one", "column": 3}, "column must be one of 0 to 2"),
        ({"present": np.ones((10, 3))}, "bool array of shape"),
        ({"generator": 0}, "numpy Generator"),
        ({"kind": "one", "present": np.eye(3, dtype=bool)}, "only 0 can and keep another"),
        ({"rate": -0.1}, "between 0 and 1; got -0.1"),
        ({"rate": 1.1}, "between 0 and 1; got 1.1"),
        ({"rate": None}, "between 0 and 1; got None"),
        ({"kind": "source", "groups": []}, "needs groups="),
        ({"kind": "source", "groups": [(0, -1)]}, "needs groups="),
        ({"kind": "one", "column": -1}, "column must be one of 0 to 2; got -1"),
        ({"kind": "all-but", "complete": 3}, "takes complete=, a number of rows, and no rate; got 0.5"),
        ({"kind": "all-but", "rate": None}, "how many of the 10 complete rows stay so; got None"),
        ({"kind": "all-but", "rate": None, "complete": 11}, "of the 10 complete rows stay so; got 11"),
        ({"kind": "all-but", "rate": None, "complete": -1}, "complete rows stay so; got -1"),
        ({"kind": "one", "strength": 1}, 'has no option "strength"; it has column'),
        ({"kind": "value", "strong": 1}, 'has no option "strong"; it has values, strength'),
        ({"present": np.ones(10, dtype=bool)}, r"got bool of shape \(10,\)"),
        ({"kind": "one", "present": np.eye(3, 2, dtype=bool)}, r"2 of 3 rows should .* use a rate of at most 0\.000"),
    ],
)
def test_refuses(arguments: dict[str, Any], said: str) -> None:
    given = {"present": np.ones((10, 3), dtype=bool), "rate": 0.5, "generator": np.random.default_rng(0)} | arguments
    with pytest.raises(InputError, match=said):
        hide(**given)


def test_patterns() -> None:
    present = np.array([[1, 1], [1, 0], [1, 1], [0, 0], [0, 1]], dtype=bool)
    found = patterns(present, ["image", "text"])
    assert [(p.modalities, p.rows) for p in found] == [
        (("image", "text"), 2),
        (("image",), 1),
        (("text",), 1),
        ((), 1),
    ]
    assert found[0].share == 0.4
    assert pattern_table(present, ["image", "text"]).splitlines() == [
        "image  text       rows   share",
        "  yes   yes          2   40.0%",
        "  yes     -          1   20.0%",
        "    -   yes          1   20.0%",
        "    -     -          1   20.0%",
        "    3     3          5     all",
    ]
    assert pattern_table(present, ["image", "long name"]).splitlines()[-1] == "    3          3          5     all"
    for wrong in (present[0], present):
        with pytest.raises(InputError, match=r"present has shape .* but there are 3 names \(a, b, c\)"):
            patterns(wrong, list("abc"))


def test_all_but_keeps_so_many_complete_rows():
    present = np.ones((200, 3), dtype=bool)
    present[150:, 1] = False  # these lack something already
    masks = {n: hide(present, None, np.random.default_rng(3), kind="all-but", complete=n) for n in (0, 25, 100, 150)}
    for n, mask in masks.items():
        assert mask.all(axis=1).sum() == n
        assert (mask.sum(axis=1) >= 2).all()
        assert (mask[150:] == present[150:]).all()
    assert not (masks[25].all(axis=1) & ~masks[100].all(axis=1)).any()  # the smaller set is part of the larger
    assert (masks[150] == present).all()


def test_value_is_the_procedure_by_hand() -> None:
    n, k, rng = 40, 3, np.random.default_rng(7)
    z = {f"m{j}": np.random.default_rng(j).normal(size=(n, 4)) + 5 for j in range(k)}
    present = np.random.default_rng(9).random((n, k)) < 0.8
    scores = np.zeros((n, k))
    for j, values in enumerate(z.values()):
        along = values @ rng.normal(size=4)
        scores[:, j] = (along - along[present[:, j]].mean()) / along[present[:, j]].std()
    spare = present.copy()
    for row, pick in zip(np.flatnonzero(present.any(1)), rng.integers(0, present.sum(1)[present.any(1)]), strict=True):
        spare[row, np.flatnonzero(present[row])[pick]] = False
    keys = np.where(spare, 2.0 * scores, -np.inf)
    keys[spare] += rng.gumbel(size=spare.sum())
    wanted = round(0.2 * present.sum())
    first = np.zeros(n * k, dtype=bool)
    first[np.argsort(-keys.reshape(-1))[:wanted]] = True
    got = hide(present, 0.2, np.random.default_rng(7), "value", values=z)
    assert np.array_equal(got, present & ~first.reshape(n, k))


@pytest.mark.parametrize(
    ("kind", "rate", "more", "gone"),
    [
        ("mcar", 0, {}, 0),
        ("mcar", 2 / 3, {}, 20),
        ("one", 0.5, {"column": 1}, 5),
        ("one", 1, {"column": 0}, 10),
        ("one", 1, {"column": 2}, 10),
        ("alone", 1, {}, 20),
        ("source", 1, {"groups": [(0,)]}, 20),
        ("source", 1, {"groups": [(2,)]}, 20),
        ("all-but", None, {"complete": 0}, 10),
        ("all-but", None, {"complete": 10}, 0),
    ],
)
def test_as_little_and_as_much_as_can_be(kind: str, rate: float, more: dict[str, Any], gone: int) -> None:
    given = np.ones((10, 3), dtype=bool)
    left = hide(given, rate, np.random.default_rng(0), kind, **more)
    assert (~left).sum() == gone
    other = hide(torch.from_numpy(given), rate, np.random.default_rng(0), kind, **more)
    assert torch.equal(other, torch.from_numpy(left))  # torch in, torch out, and drawn alike


def test_what_has_one_modality_keeps_it() -> None:
    assert hide(np.ones((5, 1), dtype=bool), None, np.random.default_rng(0), "all-but", complete=2).all()
    present = np.ones((100, 4), dtype=bool)
    present[:10, 1:] = False
    counts = hide(present, 0.7, np.random.default_rng(0), kind="alone").sum(axis=1)
    assert ((counts == 1).sum(), (counts == 4).sum()) == (80, 20)  # 70, and the ten that had one
    with pytest.raises(InputError, match="100 of 100 rows should keep one modality only but 90 have several"):
        hide(present, 1.0, np.random.default_rng(0), kind="alone")
    z = {"a": np.ones((6, 2)), "b": np.arange(6.0)[:, None], "c": np.full((6, 1), np.nan)}
    two = np.array([[True, True, False]] * 6)
    assert hide(two, 0.5, np.random.default_rng(0), "value", values=z).sum() == 6  # a never varies, nobody has c


# ---- how complete rows are


def counted(present: np.ndarray) -> Completeness:
    """Block by block, row by row and pair by pair."""
    n, k = present.shape
    pairs = list(combinations(range(k), 2))
    seen = {pair: sum(all(line[list(pair)]) for line in present) for pair in pairs}
    return Completeness(
        n,
        sum(not block for line in present for block in line) / (n * k),
        sum(all(line) for line in present) / n,
        sum(seen.values()) / (n * len(pairs)),
        min(seen.values()),
    )


@pytest.mark.parametrize(("n", "k", "rate"), [(50, 2, 0.3), (40, 5, 0.5), (1, 3, 0.0), (30, 4, 1.0)])
def test_as_counted(n, k, rate):
    present = np.random.default_rng(n).random((n, k)) >= rate
    found, wanted = completeness(present), counted(present)
    assert (found.rows, found.rarest) == (wanted.rows, wanted.rarest)
    assert (found.missing, found.complete, found.pairs) == pytest.approx(
        (wanted.missing, wanted.complete, wanted.pairs)
    )
    assert completeness(torch.from_numpy(present)) == found


def test_a_line_may_stand_for_many_rows():
    kinds = np.array([[True, True, True], [True, True, False], [False, False, True]])
    found, whole = completeness(kinds, [2, 5, 3]), completeness(np.repeat(kinds, [2, 5, 3], axis=0))
    assert (found.rows, found.rarest) == (10, 2) == (whole.rows, whole.rarest)
    assert (found.missing, found.complete, found.pairs) == pytest.approx((whole.missing, whole.complete, whole.pairs))


def test_no_rows_and_no_pairs():
    assert completeness(np.ones((0, 3), dtype=bool)) == Completeness(0, 0.0, 0.0, 0.0, 0)
    alone = completeness(np.ones((4, 1), dtype=bool))
    assert (alone.missing, alone.complete, alone.pairs) == (0.0, 1.0, 0.0)
