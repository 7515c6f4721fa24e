"""Which objects hold features, how they are told apart, and what comes back in kind."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import calmrl.interop as interop
from calmrl.data import FeatureSet
from calmrl.errors import InputError
from calmrl.imputers import GaussianImputer, MeanImputer
from calmrl.interop import from_object, impute_object, is_container, to_object
from tests.interop.interop_data import observed

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
TWO_LEVELS = pandas.MultiIndex.from_tuples([("a", "x"), ("a", "y"), ("a", "z"), ("b", "x"), ("note", "")])


def two_levels() -> pandas.DataFrame:
    return pandas.DataFrame([[1.0, 2.0, 3.0, 4.0, "n"], [5.0, 6.0, 7.0, 8.0, "m"]], columns=TWO_LEVELS)


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        (observed(), True),
        (interop.to_arrow(observed()), True),
        (interop.to_pandas(observed()), True),
        (interop.to_pandas(observed(), wide=True), True),
        (interop.to_polars(observed()), True),
        (interop.to_polars(observed(), wide=True), True),
        (two_levels(), True),
        (pandas.DataFrame({"a": [None, [1.0]]}), True),
        (pandas.DataFrame({"a": ["x", [1.0]]}), False),
        (pandas.DataFrame({"a": pandas.Series([None, None], dtype=object)}), False),
        (pandas.DataFrame({"a": [1.0], "b": [2.0]}), False),
        (polars.DataFrame({"a": [1.0], "b": [2.0]}), False),
        (polars.DataFrame({"a": polars.Series([[1.0, 2.0]], dtype=polars.Array(polars.Float64, 2))}), True),
        ({"image": np.ones((2, 3))}, False),
        (np.ones((2, 3)), False),
    ],
    ids=range(15),
)
def test_a_frame_of_plain_numbers_is_one_matrix(value, holds):
    assert is_container(value) is holds


@pytest.mark.parametrize(
    ("names", "wide"),
    [
        (["id", "image.0"], True),
        (["id", "image"], False),
        (["5"], False),
        (["image.imputed"], False),
        (["a", 0], False),
        (TWO_LEVELS, True),
    ],
)
def test_numbered_columns_are_wide(names, wide):
    frame = pandas.DataFrame([[0] * len(names)], columns=names)
    assert ("image.3" in to_object(observed(), like=frame).columns) is wide
    if all(isinstance(name, str) for name in names):
        table = pa.table({name: [0] for name in names})
        assert ("image.3" in to_object(observed(), like=table).column_names) is wide


def test_other_objects_are_refused_with_what_there_is():
    with pytest.raises(InputError, match=r"cannot be read from int; they can from calmrl\.FeatureSet, mudata\.MuData"):
        from_object(3)
    with pytest.raises(InputError, match=r"cannot be written as int; they can as calmrl\.FeatureSet, mudata\.MuData"):
        to_object(observed(), like=3)


def test_a_modality_that_the_object_lacks_is_imputed_everywhere():
    features = observed()
    rows = np.flatnonzero(features.present[:, 0])
    images = FeatureSet({"image": features.z["image"][rows]}, features.present[rows, :1], features.meta.take(rows))
    done = impute_object(MeanImputer().fit(features), images)
    assert done.names == ("image", "text")
    assert done.present.tolist() == [[True, False]] * len(rows)
    np.testing.assert_array_equal(done.imputed, ~done.present)
    assert list(done.ids) == list(images.ids)
    np.testing.assert_allclose(done.z["text"][0], np.nanmean(features.z["text"], axis=0), rtol=1e-5)


def test_ids_of_a_pandas_frame():
    vectors = {"a": [[1.0], [2.0]]}
    assert interop.from_pandas(pandas.DataFrame(vectors)).ids.tolist() == ["0", "1"]
    assert interop.from_pandas(pandas.DataFrame(vectors, index=[7, 9])).ids.tolist() == ["7", "9"]
    named = pandas.DataFrame({"id": ["p", "q"], **vectors}, index=[7, 9])
    assert interop.from_pandas(named).ids.tolist() == ["p", "q"]


def test_two_levels_of_columns_become_modalities():
    features = interop.from_pandas(two_levels())
    assert {name: block.tolist() for name, block in features.z.items()} == {
        "a": [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]],
        "b": [[4.0], [8.0]],
    }
    assert features.column("note").tolist() == ["n", "m"]


def test_frames_that_cannot_be_read():
    three = pandas.DataFrame([[1.0]], columns=pandas.MultiIndex.from_tuples([("a", "b", "c")]))
    with pytest.raises(InputError, match="the frame has 3 levels of columns; two name modality and entry"):
        interop.from_pandas(three)
    with pytest.raises(InputError, match="several columns of the same name; rename them"):
        interop.from_pandas(pandas.DataFrame([[1.0, 2.0]], columns=["0", 0]))
    with pytest.raises(InputError, match=r'column "a" of the frame mixes kinds of values .*; use one kind per column'):
        interop.from_pandas(pandas.DataFrame({"a": [1, "x"]}))
    with pytest.raises(InputError, match="several columns of the same name; rename them"):
        interop.from_pandas(pandas.DataFrame([[1.0, 2.0]], columns=["a", "a"]))


@pytest.mark.parametrize("given", [["size/w", "size/h"], ["size.w", "size.h"]])
def test_lance_takes_columns_with_dots_or_slashes(given, tmp_path):
    lancedb = pytest.importorskip("lancedb")
    lancedb.connect(tmp_path).create_table("features", pa.table({"id": ["p"], "size/w": [1.0], "size/h": [2.0]}))
    assert interop.from_lance(tmp_path / "features.lance", {"size": given}).ids.tolist() == ["p"]
    assert interop.from_lance(tmp_path, {"size": given}).z["size"].tolist() == [[1.0, 2.0]]


def with_single_holes():
    features = observed()
    features.z["text"][15, 1] = features.z["image"][16, :2] = np.nan
    return features


HOLED = {
    "pandas": interop.to_pandas,
    "pandas, wide": lambda features: interop.to_pandas(features, wide=True),
    "polars": interop.to_polars,
    "Arrow": interop.to_arrow,
    "MuData": interop.to_mudata,
    "AnnData": interop.to_anndata,
}


@pytest.mark.parametrize("kind", HOLED)
def test_single_missing_entries_are_imputed_beside_what_was_observed(kind):
    features = with_single_holes()
    value = HOLED[kind](features)
    imputer = GaussianImputer(2, max_iter=50, tol=1e-2).fit(value)
    want, std = imputer.impute(features.z, features.present, return_std=True)
    done = imputer.transform(value)
    back = from_object(done)
    np.testing.assert_array_equal(back.present, features.present)
    for name in features.z:
        np.testing.assert_allclose(back.z[name], want[name], rtol=1e-5)
        np.testing.assert_allclose(back.std[name], std[name], rtol=1e-5)
    again = done["text"].X if kind == "MuData" else done.X[:, 4:] if kind == "AnnData" else None
    if again is not None:  # what was not observed stays NaN where observations are
        np.testing.assert_array_equal(np.isnan(again), np.isnan(features.z["text"]))
