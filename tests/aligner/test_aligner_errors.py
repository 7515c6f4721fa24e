"""Bad input, word for word."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from calmrl import Aligner, GaussianImputer
from calmrl.aligner.rows import check_aligner, check_pairs, group_numbers, relevance_numbers
from calmrl.baselines import MCCA
from calmrl.errors import InputError
from calmrl.latent.rows import open_source
from tests.aligner.aligner_data import FAST, linear_rows

ARGUMENTS = [
    (
        {"features": "kernal"},
        "features must be one of 'auto', 'linear', 'kernel'; got 'kernal'; did you mean 'kernel'?",
    ),
    ({"refine": True}, "refine must be one of 'auto', 'never', 'always'; got True"),
    ({"unit_rows": "yes"}, "unit_rows must be True, False or 'auto'; got 'yes'"),
    ({"whitening": 1.5}, "whitening must be a number from 0 to 1, or 'auto'; got 1.5"),
    ({"prior": -1}, "prior must be a number of rows >= 0, or 'auto'; got -1"),
    ({"latent_dim": 0}, "latent_dim must be a whole number >= 1, or 'auto'; got 0"),
    ({"folds": 1}, "folds must be a whole number >= 2; got 1"),
    ({"landmarks": 2.5}, "landmarks must be a whole number >= 2; got 2.5"),
]


@pytest.mark.parametrize(
    ("arguments", "text"), ARGUMENTS, ids=lambda value: next(iter(value), "") if isinstance(value, dict) else ""
)
def test_arguments(arguments, text):
    with pytest.raises(InputError) as error:
        Aligner(**arguments).fit(*linear_rows(n=12))
    assert str(error.value) == text


def test_holes_in_a_modality_that_was_whole_in_fit():
    z, present = linear_rows(n=60)
    torn = {name: array.copy() for name, array in z.items()}
    torn["m0"][int(np.flatnonzero(present[:, 0])[5]), 3] = np.nan
    for model in (Aligner(**FAST), MCCA()):
        with pytest.raises(InputError) as error:
            model.fit(z).embed(torn, present)
        assert str(error.value) == (
            "some rows have holes inside a modality (m0), but it was fitted on whole rows of it; fit it on rows with holes, or "
            "complete these first with a GaussianImputer"
        )
    whole = GaussianImputer(4).fit(torn).transform(torn)  # as it says
    assert np.isfinite(Aligner(**FAST).fit(z).embed(whole, present)).all()


def one_modality(z):
    return {"m0": np.nan_to_num(z["m0"])}


def never_seen(z):
    return z | {"m1": np.full_like(z["m1"], np.nan), "m0": np.nan_to_num(z["m0"])}


def unlinked(z):
    z = {name: np.nan_to_num(a) for name, a in z.items() if name != "m2"}
    z["m0"][:20] = np.nan
    z["m1"][20:] = np.nan
    return z


DATA = [
    (one_modality, "z has one modality (m0); an aligner needs at least two"),
    (
        never_seen,
        "modality 'm1' is observed in no row, so nothing can be learned about it; leave it out, or add rows that have it",
    ),
    (
        unlinked,
        "no row links m1 with m0, not even through a third modality, so nothing can be learned between them; add rows "
        "that have both, or fit them separately",
    ),
    (lambda z: [1, 2], "chunk 0 must be a pair (z, present); got int"),
    (lambda z: 3, "z must be a dict of arrays or an iterable of (z, present) chunks; got int"),
    (lambda z: {0: z["m0"], "m1": z["m1"]}, "modality names must be strings; got 0 of type int"),
]


@pytest.mark.parametrize(("change", "text"), DATA, ids=lambda value: getattr(value, "__name__", ""))
def test_data(change, text):
    with pytest.raises(InputError) as error:
        Aligner(**FAST).fit(change(linear_rows(n=40)[0]))
    assert str(error.value) == text


def test_masks_and_groups():
    z, present = linear_rows(n=40)
    with pytest.raises(InputError, match=r"present has 2 columns but z has 3 modalities \(m0, m1, m2\)"):
        Aligner(**FAST).fit(z, present[:, :2])
    with pytest.raises(InputError, match="groups has 3 labels but z has 40 rows; pass one label per row"):
        Aligner(**FAST).fit(z, present, groups=["a", "b", "c"])


def test_after_fitting():
    z, _ = linear_rows(rate=0.0)
    with pytest.raises(NotFittedError):
        Aligner().embed(z)
    aligner = Aligner(**FAST).fit(z)
    with pytest.raises(InputError, match="z has modality 'sound', which the model does not know; it has m0, m1, m2"):
        aligner.embed({"sound": z["m0"]})
    with pytest.raises(InputError, match=r"z\['m0'\] has width 8 but the model was fitted with 12"):
        aligner.embed({"m0": z["m2"]})
    with pytest.raises(InputError, match="n is the number of gallery items, a whole number from 2 on; got 1"):
        aligner.expected(1)
    with pytest.raises(InputError, match="hubs must be None or 'csls'; got 'all'"):
        aligner.similarity(z, z, hubs="all")
    with pytest.raises(InputError, match="whole number from 1 on; got 0"):
        aligner.similarity(z, z, hubs="csls", k=0)


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
