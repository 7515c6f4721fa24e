"""Columns of one array as modalities: which objects are taken for what, and blocks at their limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from calmrl.errors import InputError
from calmrl.imputers import GaussianImputer, MeanImputer
from calmrl.imputers.base import block_columns, is_chunks, is_matrix

CHUNK = ({"a": np.ones((1, 1))}, np.ones((1, 1), bool))
KINDS = {
    "array": (np.ones((2, 2)), False, True),
    "sparse": (csr_array(np.eye(2)), False, True),
    "rows": ([[1.0, 2.0], [3.0, 4.0]], False, True),
    "rows of tuples": ([(1.0, 2.0)], False, True),
    "list of chunks": ([CHUNK], True, False),
    "tuple of chunks": ((CHUNK,), True, False),
    "list of three": ([[{"a": 1}, 2, 3]], False, True),
    "pairs of numbers": ([(1.0, 2.0), (3.0, 4.0)], False, True),
    "nothing": ([], False, False),
    "numbers": ([1, 2], False, False),
    "generator": (iter([CHUNK]), True, False),
    "text": ("abc", False, False),
    "bytes": (b"abc", False, False),
    "number": (3, False, False),
}


@pytest.mark.parametrize("case", KINDS)
def test_what_is_taken_for_what(case):
    given, chunks, matrix = KINDS[case]
    assert (is_chunks(given), is_matrix(given)) == (chunks, matrix)


def places(*arguments):
    return {name: at.tolist() for name, at in block_columns(*arguments).items()}


def test_blocks():
    assert places(None, 3) == {"x": [0, 1, 2]}
    assert places([2, 1], 3) == {"block0": [0, 1], "block1": [2]}
    assert places({"a": 1, "b": np.int64(2)}, 3) == {"a": [0], "b": [1, 2]}
    assert places({"a": [2, 0], "b": (1,)}, 3) == {"a": [2, 0], "b": [1]}
    assert places({"a": ["y"], "b": ["x", 2]}, 3, ["x", "y", "z"]) == {"a": [1], "b": [0, 2]}


@pytest.mark.parametrize(
    ("blocks", "names", "said"),
    [
        ([2, 2], None, "blocks must be positive widths that add up to the 3 columns; got block0: 2, block1: 2"),
        ([3, 0], None, "blocks must be positive widths"),
        ([1.5, 1.5], None, "blocks must be positive widths"),
        ({"a": 4, "b": -1}, None, "got a: 4, b: -1"),
        (
            {"a": [0, 1], "b": [3]},
            None,
            r"blocks: 'b' names column \[3\], which the input does not have \(the columns have no",
        ),
        ({"a": [0, 1], "b": [-1]}, None, r"blocks: 'b' names column \[-1\]"),
        ({"a": [0, 1, 2], "b": []}, None, r"blocks: 'b' names column \[\]"),
        (
            {"a": ["x", "w"], "b": [1]},
            ["x", "y", "z"],
            r"'a' names column \['w'\], which .* \(names are x, y, z, ...\)",
        ),
        ({"a": [0, 1], "b": [1]}, None, "blocks name 2 different columns, 3 in all, of an input that has 3"),
        ({"a": [0], "b": [1]}, None, "blocks name 2 different columns, 2 in all, of an input that has 3"),
        ({"a": [0, 1], "b": [2, 2]}, None, "blocks name 3 different columns, 4 in all, of an input that has 3"),
    ],
)
def test_blocks_that_cannot_be(blocks, names, said):
    with pytest.raises(InputError, match=said):
        block_columns(blocks, 3, names)


@pytest.mark.parametrize("blocks", [[2, 1], {"a": [2, 0], "b": [1]}, {"a": [0, 2], "b": [1]}], ids=str)
def test_columns_come_back_in_their_order(blocks):
    x = np.random.default_rng(0).normal(size=(20, 3))
    at = block_columns(blocks, 3)
    last = list(at.values())[-1]
    holes = x.copy()
    holes[:5][:, last] = np.nan
    filled = MeanImputer(blocks=blocks).fit_transform(holes)
    want = x.copy()
    want[:5][:, last] = x[5:][:, last].mean(0)
    np.testing.assert_allclose(filled, want)
    mask = np.ones((20, 2), bool)
    mask[:5, 1] = False
    np.testing.assert_allclose(MeanImputer(blocks=blocks).fit(x, mask).transform(x, mask), want)
    ignored = MeanImputer(blocks=blocks).fit(holes, np.zeros(20)).transform(holes)  # the y of scikit-learn
    np.testing.assert_allclose(ignored, want)


def test_one_block_may_have_holes_but_no_empty_row():
    x = np.random.default_rng(0).normal(size=(20, 3))
    x[0] = np.nan
    with pytest.raises(InputError, match=r"1 of 20 rows have no modality at all \(rows 0\)"):
        MeanImputer().fit(x)
    x[0, 1] = 1.0
    assert np.isfinite(GaussianImputer(1, max_iter=500).fit_transform(x)).all()
    assert MeanImputer(blocks=[3]).__sklearn_tags__().input_tags.allow_nan
    assert MeanImputer().__sklearn_tags__().input_tags.allow_nan


def test_blocks_as_they_are_saved(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3))
    for blocks, plain in (
        (None, None),
        ([np.int64(2), 1], [2, 1]),
        ({"a": np.int64(2), "b": 1}, {"a": 2, "b": 1}),
        ({"a": np.array([2, 0]), "b": [1]}, {"a": [2, 0], "b": [1]}),
    ):
        imputer = MeanImputer(blocks=blocks).fit(x)
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        imputer.save(path)
        assert MeanImputer.load(path).blocks == plain


def test_names_of_columns_are_saved(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), columns=["x", "y", "z"])
    frame.iloc[:5, 1] = np.nan
    imputer = MeanImputer(blocks={"a": ["z", "x"], "b": ["y"]}).fit(frame)
    imputer.save(tmp_path / "saved")
    back = MeanImputer.load(tmp_path / "saved")
    assert back.feature_names_in_.tolist() == ["x", "y", "z"]
    assert back.n_features_in_ == 3
    assert back.get_feature_names_out().tolist() == ["x", "y", "z"]
    np.testing.assert_array_equal(back.transform(frame), imputer.transform(frame))
