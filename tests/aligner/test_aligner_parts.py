"""What an aligner is made of, at its limits: arguments, candidates, rows that are looked at, features."""

from __future__ import annotations

import copy
from typing import ClassVar

import numpy as np
import pytest
import torch
from aligner_data import FAST, linear_rows
from numpy.testing import assert_allclose, assert_array_equal

from calmrl import Aligner
from calmrl.aligner.checks import check_aligner, check_pairs, group_numbers, relevance_numbers
from calmrl.aligner.choose import SEARCH_ROWS, _part, behind, choose
from calmrl.aligner.crossvalidation import RARE, FoldDirection, Rows, sample
from calmrl.aligner.features import fit_kernel, fit_linear, kernel, prepared
from calmrl.aligner.space import make_grid
from calmrl.aligner.storage import aligner_card, from_state, to_state
from calmrl.errors import InputError
from calmrl.hub import LIMITS
from calmrl.latent.rows import open_source
from calmrl.metrics.retrieve import csls

# ---- arguments

RIGHT = [
    {"whitening": 0.0},
    {"whitening": 1.0},
    {"whitening": 1},
    {"prior": 0},
    {"prior": 1e9},
    {"latent_dim": 1},
    {"latent_dim": np.int64(3)},
    {"candidates": 1},
    {"folds": 2},
    {"landmarks": 2},
    {"unit_rows": np.True_},
]
WRONG = {
    "whitening": [-0.01, 1.01, True, "half", float("nan")],
    "prior": [-0.01, float("inf"), float("nan"), True, "much"],
    "latent_dim": [0, 1.5, True, "many"],
    "candidates": [0, True, "16", 1.5],
    "folds": [1, "three"],
    "landmarks": [1, "2000"],
    "unit_rows": [1.5, "no", None],
    "features": ["curved", None],
}


@pytest.mark.parametrize("arguments", RIGHT, ids=str)
def test_arguments_at_their_limits(arguments):
    check_aligner(Aligner(**arguments).get_params())


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_arguments_beyond_their_limits(name, value):
    with pytest.raises(InputError, match=f"^{name} must be .*; got {value!r}"):
        check_aligner(Aligner(**{name: value}).get_params())


def test_defaults():
    auto = dict.fromkeys(("features", "unit_rows", "whitening", "latent_dim", "prior", "refine"), "auto")
    numbers = {"candidates": 16, "folds": 3, "landmarks": 2000, "random_state": 0}
    assert Aligner().get_params() == {**auto, **numbers, "blocks": None}


# ---- labels of rows


def small_source(n=4):
    return open_source({"a": np.arange(2.0 * n).reshape(n, 2), "b": np.ones((n, 1))}, np.ones((n, 2), bool))


def test_numbers_of_labels():
    numbers = group_numbers(["x", 1, "1", "x"], small_source())
    assert numbers.dtype == np.int64
    assert numbers[0] == numbers[3]
    assert len(set(numbers.tolist())) == 3
    assert (numbers >= 0).all()
    assert group_numbers(None, small_source()) is relevance_numbers(None, small_source()) is None
    found = relevance_numbers(["x", None, "", "x"], small_source())
    assert found[0] == found[3] >= 0
    assert found[1:3].tolist() == [-1, -1]
    for labels in (group_numbers, relevance_numbers):
        with pytest.raises(InputError, match=r"has 3 .* but z has 4 rows"):
            labels(["a", "b", "c"], small_source())
    with pytest.raises(InputError, match="groups is 'film', the name of a column, but z is no feature set"):
        group_numbers("film", small_source())


def test_pairs_that_never_meet_are_all_named():
    present = np.zeros((40, 4), bool)
    for row in range(39):
        present[row, [0, 1 + row % 3]] = True
    present[39] = [True, True, True, False]
    z = {name: np.random.default_rng(j).normal(size=(40, 2)) for j, name in enumerate("abcd")}
    with pytest.warns(
        UserWarning, match="no row has both b and d; nor c and d: they are aligned through other modalities"
    ):
        check_pairs(open_source(z, present))


# ---- candidates


def test_the_grid():
    grid = make_grid("auto", "auto", "auto", "auto", "auto")
    assert (grid.features, grid.unit_rows) == (("linear", "kernel"), (True, False))
    assert grid.whitening == {"linear": (0.5, 0.0, 0.75), "kernel": (0.5, 0.75)}
    assert grid.latent_dim == {"linear": (128, 64), "kernel": (256, 64)}
    assert grid.prior == (300.0, 30.0, 100.0, 170.0, 550.0, 1000.0, 1800.0)
    first = grid.first("kernel", False)
    assert first.row() == {
        "features": "kernel",
        "unit_rows": False,
        "whitening": 0.5,
        "latent_dim": 256,
        "prior": 300.0,
    }
    assert [one.prior for one in grid.priors(first)] == [170.0, 300.0, 550.0]
    lowest = grid.priors(grid.priors(grid.priors(grid.priors(first)[0])[0])[0])[0]
    assert [one.prior for one in grid.priors(lowest)] == [30.0, 100.0]
    assert [one.whitening for one in grid.whitenings(first)] == [0.5, 0.75]
    assert [one.latent_dim for one in grid.latents(first)] == [256, 64]
    assert [one.unit_rows for one in grid.scalings(first)] == [True, False]
    fixed = make_grid("linear", False, 1, 7, 3)
    assert (fixed.features, fixed.unit_rows, fixed.prior) == (("linear",), (False,), (3.0,))
    assert (fixed.whitening["linear"], fixed.latent_dim["linear"]) == ((1.0,), (7,))


def race(worse, n=100, directions=1):
    """The leader finds everything second; of `mine`, so many queries find nothing."""
    mine = np.where(np.arange(n) < worse, 1e9, 2.0)
    leader = np.full(n, 2.0)
    return [{(d, 9): FoldDirection(ranks, 50) for d in range(directions)} for ranks in (mine, leader)]


def test_behind_by_three_standard_errors():
    assert not behind(*race(8))  # 0.040 against 3 x 0.0136
    assert behind(*race(9))  # 0.045 against 3 x 0.0143
    assert not behind(*race(50, n=99))  # too few queries
    assert behind(*race(4, directions=3))  # 0.020 against 3 x 0.0098 / sqrt(3)
    assert not behind(*race(2, directions=3))  # 0.010 against 3 x 0.0070 / sqrt(3)


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
    assert _part(exact, 0) is exact
    part = _part(rows(2402), 0)
    assert len(part) == 2400
    assert (np.diff(part.z[0][:, 0]) > 0).all()  # in their order
    assert (np.bincount(part.groups)[np.unique(part.groups)] == 2).all()
    assert not np.array_equal(part.groups, _part(rows(2402), 1).groups)


# ---- features


def normal(n, d, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)))


def test_numbers_of_directions_and_landmarks():
    assert fit_linear(normal(300, 260), False).width == 256
    assert fit_linear(normal(260, 300), False).width == 256
    assert fit_linear(normal(20, 7), True).width == 7
    assert fit_kernel(normal(530, 3), False, torch.Generator().manual_seed(0), 2000).width <= 512
    feature_map = fit_kernel(normal(50, 40), False, torch.Generator().manual_seed(0), 20)
    assert feature_map.landmarks.shape == (20, 40)
    assert feature_map.width == 19  # one is lost to the centre


def test_shape_of_the_kernel():
    x = normal(450, 2)
    feature_map = fit_kernel(x, False, torch.Generator().manual_seed(3), 1000)
    order = torch.randperm(450, generator=torch.Generator().manual_seed(3))
    rows = (x - x.mean(0))[order]
    width = 0.7 * float(torch.pdist(rows[:400]).median())
    assert_allclose(feature_map.shape, [0.5 / width**2, 0.5 / float(rows.square().sum(1).mean())])
    one, two = normal(3, 2, 1), normal(4, 2, 2)
    want = [[np.exp(-0.3 * float((a - b).square().sum())) + 0.2 * float(a @ b) for b in two] for a in one]
    assert_allclose(kernel(one, two, 0.3, 0.2), want)


def test_rows_that_are_the_centre_stay_zero():
    x = torch.tensor([[1.0, 2.0], [4.0, 6.0]], dtype=torch.float64)
    assert prepared(x, x[0], True).tolist() == [[0, 0], [0.6, 0.8]]
    assert prepared(x, x[0], False).tolist() == [[0, 0], [3, 4]]


@pytest.mark.parametrize("fit", [fit_linear, lambda x, unit: fit_kernel(x, unit, torch.Generator(), 10)])
def test_a_modality_without_rows(fit):
    feature_map = fit(torch.zeros(0, 3), True)
    assert feature_map.width == 1
    assert not feature_map(normal(4, 3)).any()
    assert feature_map.scale(0.5).tolist() == [1.0]
    assert feature_map.shape.tolist() == [0.0, 0.0]
    assert feature_map(normal(0, 3)).shape == (0, 1)


# ---- a fitted one


@pytest.fixture(scope="module")
def fitted():
    z, _ = linear_rows(n=90, rate=0.0)
    return Aligner(**FAST).fit(z, relevant=np.arange(90) // 2), z


PARTS = ["landmarks", "shape", "offset", "projection", "variance", "weight", "bias", "information"]


@pytest.mark.parametrize("part", PARTS)
def test_tensors_that_do_not_fit_each_other(fitted, part):
    state = to_state(fitted[0])
    key = f"{'space' if part in PARTS[5:] else 'lift'}.m1.{part}"
    tensor = state["tensors"][key]
    for wrong in (torch.zeros((*tensor.shape[:-1], tensor.shape[-1] + 1)), tensor.long()):
        if part == "projection" and wrong.is_floating_point():
            wrong = torch.zeros((tensor.shape[0] + 1, tensor.shape[1]))
        broken = {"meta": state["meta"], "tensors": {**state["tensors"], key: wrong}}
        with pytest.raises(InputError, match=rf"my file is incomplete \(.*\b{part} of m1 is .*\); save it again"):
            from_state(broken, "my file")


def test_files_of_earlier_versions(fitted):
    aligner, z = fitted
    state = to_state(aligner)
    del state["meta"]["encoders"]
    state["tensors"] = {key: tensor for key, tensor in state["tensors"].items() if not key.startswith("group.")}
    again = from_state(state)
    assert again.encoders_ is None
    assert_array_equal(again.embed(z), aligner.embed(z))
    assert again.evidence_["m0->m1"].own.group.tolist() == list(range(90))


def test_what_a_fitted_one_answers(fitted):
    aligner, z = fitted
    with pytest.raises(InputError, match="a whole number from 2 on; got"):
        aligner.expected(True)
    with pytest.raises(InputError, match="a whole number from 2 on; got"):
        aligner.expected(5.0)
    assert aligner.expected(2)["m0->m1"]["n"] == aligner.expected(np.int64(2))["m0->m1"]["n"] == 2
    first, rest = {"m0": z["m0"][:20]}, {"m1": z["m1"][:20]}
    assert_allclose(aligner.similarity(first, rest, hubs="csls"), csls(aligner.similarity(first, rest), 10))
    with pytest.raises(InputError, match="queries and gallery mix NumPy arrays and torch tensors; pass one kind"):
        aligner.similarity({"m0": torch.from_numpy(z["m0"])}, rest)
    assert aligner.get_feature_names_out().tolist() == [f"aligner{j}" for j in range(6)]
    assert repr(aligner).endswith(", fitted: m0, m1, m2 -> 6 latents, linear features")
    assert "fitted" not in repr(Aligner())


# ---- the choice as a whole


class Counted:
    """A fold that remembers its rows; the better its candidate, the smaller the ranks."""

    made: ClassVar[list] = []

    def __init__(self, names, train, held, seed, landmarks):
        self.train, self.held, self.spaces = train, held, {}
        assert (names, seed, landmarks) == (["a", "b"], 5, 77)
        Counted.made.append(self)

    def evaluate(self, candidate):
        self.spaces[candidate] = None
        size = len(self.train)
        ranks = np.full(len(self.held), 2.0 if size > 20 else 4.0)
        return {(0, 1): FoldDirection(ranks, len(self.held))} if len(self.held) > 2 else {}


def choose_from(monkeypatch, n, total=90):
    monkeypatch.setattr("calmrl.aligner.choose.Fold", Counted)
    Counted.made = []
    rows = Rows([torch.arange(n)[:, None]] * 2, torch.ones(n, 2, dtype=torch.bool), np.arange(n))
    grid = make_grid("linear", True, 0.5, 64, 300.0)
    return choose(["a", "b"], rows, total, grid, 4, 3, 77, "never", 5), grid


def held(fold):
    return sorted(fold.held.groups.tolist())


def test_folds_of_the_choice(monkeypatch):
    choice, grid = choose_from(monkeypatch, 36)
    whole, smaller = Counted.made[:3], Counted.made[3:]
    assert sorted(row for fold in whole for row in held(fold)) == list(range(36))
    for fold in whole:
        assert sorted([*held(fold), *fold.train.groups.tolist()]) == list(range(36))
    for f, fold in enumerate(smaller):  # a third learns, another third is held out
        assert held(fold) == held(whole[f])
        assert sorted(fold.train.groups.tolist()) == held(whole[f - 1])
    # logit(1/2) - logit(1/4), from twice as many rows; the final fit has 90 instead of 24
    assert choice.gain == pytest.approx(np.log(3) * (1 - 24 / 90))
    assert choice.rows == 36
    assert choice.candidate == grid.first("linear", True)
    assert list(choice.evidence) == ["a->b"]
    assert choice.evidence["a->b"].ranks.tolist() == [2.0] * 36
    assert choice.dispersion == 1.0
    (score,) = choice.scores.values()
    assert score == (3, pytest.approx(np.log(12) / 2))
    summary = choice.summary(9)
    assert (summary["latent_dim"], summary["refine_steps"], summary["rows"]) == (9, 0, 36)
    assert summary["score"] == score[1]
    assert summary["candidates"] == [{**choice.candidate.row(), "score": score[1], "folds": 3}]


@pytest.mark.parametrize(
    ("n", "why"), [(5, "5 rows are too few to be split into 3 folds"), (6, "no held-out row has two")]
)
def test_nothing_to_choose_from(monkeypatch, n, why):
    """Two rows in every fold are enough to look, and here they find nothing."""
    with pytest.warns(UserWarning, match=f"nothing was chosen by cross-validation and nothing is expected: {why}"):
        choice, grid = choose_from(monkeypatch, n)
    assert choice.candidate == grid.first("linear", True)
    assert (choice.scores, choice.evidence, choice.gain, choice.dispersion, choice.rows) == ({}, {}, 0.0, 1.0, 0)
    assert choice.summary(3)["score"] is None


# ---- its card


def test_what_the_card_says(fitted):
    aligner, _ = fitted
    known = copy.copy(aligner)
    known.encoders_ = {"encoders": {"m1": {"name": "clip"}, "other": {"name": "x"}}}
    card = aligner_card(known)
    assert card.encoders == {"m1": "clip"}
    assert card.widths == {"m0": 12, "m1": 10, "m2": 8}
    assert "candidates" not in card.choice
    assert card.choice["latent_dim"] == 6
    expected = aligner.expected_["m0->m1"]
    first = card.quality[0]
    assert first == {"direction": "m0->m1", **{key: round(value, 1) for key, value in expected.items()}}
    assert card.title == "Aligner: m0, m1, m2 in one space of 6 dimensions"
    assert len(card.quality) == 6
    assert len(card.limits) == len(LIMITS)
    del known.__dict__["evidence_"]
    known.evidence_ = {key: value for key, value in aligner.evidence_.items() if key != "m0->m1"}
    assert aligner_card(known).limits[-1].startswith("No training row shows m0->m1;")
