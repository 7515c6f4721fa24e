"""Tables of rows and arrays at their limits: what is taken, what is refused, and in which words."""

from __future__ import annotations

import io
import re

import numpy as np
import pyarrow as pa
import pytest

from calmrl._support.output import write_json
from calmrl.data import FeatureSet
from calmrl.data.features.directory import (
    check_ids,
    column_values,
    described,
    empty_npy,
    meta_table,
    open_npy,
    read_npy,
    same_table,
    write_rows,
)
from calmrl.data.features.feature_set import relevance_of, relevance_texts
from calmrl.data.features.tables import from_arrow, plain_table, to_arrow
from calmrl.errors import InputError

# ---- rows


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", "a", "b"], "1 ids occur more than once ('a');"),
        (list("aabbccd"), "3 ids occur more than once ('a', 'b', 'c');"),
        (list("aabbccdd"), "4 ids occur more than once ('a', 'b', 'c', ...);"),
        (["a", "b", ""], "row 2 has an empty id"),
    ],
)
def test_ids_that_cannot_be_told_apart(ids, said):
    with pytest.raises(InputError, match=re.escape(said)):
        check_ids(ids)


@pytest.mark.parametrize("value", [None, [1], (1,), {}, np.ones(2)])
def test_what_is_no_id(value):
    with pytest.raises(InputError, match="an id is a text or a number; got"):
        meta_table(1, ids=[value])


def test_a_table_of_rows():
    assert meta_table(2).to_pydict() == {"id": ["0", "1"]}
    table = meta_table(
        2, ids=[7, "x"], labels=[np.int64(3), None], text=["one", ["two", "three"]], columns={"w": np.array([1, 2])}
    )
    assert table.to_pydict() == {
        "id": ["7", "x"],
        "labels": [3, None],
        "text": [["one"], ["two", "three"]],
        "w": [1, 2],
    }
    for name in ("id", "split", "labels", "text"):
        with pytest.raises(InputError, match=f'column "{name}" has an argument of its own'):
            meta_table(2, columns={name: [1, 2]})
    for given, what in (({"ids": ["a"]}, "ids"), ({"columns": {"w": [1, 2, 3]}}, 'column "w"')):
        with pytest.raises(InputError, match=f"{what} has . entries but there are 2 rows; pass one entry per row"):
            meta_table(2, **given)
    assert described(table)["columns"].keys() == {"w"}
    assert described(table)["split"] is None
    assert described(table)["labels"].tolist() == [3, None]


def test_columns_as_arrays():
    table = pa.table({"i": [1, 2], "f": [0.5, 1.0], "b": [True, False], "n": [1, None], "s": ["x", "y"]})
    assert [column_values(table, name).dtype.kind for name in table.column_names] == ["i", "f", "b", "O", "O"]
    assert column_values(table, "n").tolist() == [1, None]
    assert pa.types.is_string(meta_table(2, columns={"x": np.array(["a", "b"])})["x"].type)
    matrix = meta_table(2, columns={"x": np.array([[1, 2], [3, 4]]).tolist()})
    assert matrix["x"].to_pylist() == [[1, 2], [3, 4]]


def test_tables_are_the_same_with_nan():
    one = pa.table({"x": [1.0, float("nan")], "y": ["a", "b"]})
    assert same_table(one, one)
    assert same_table(one, pa.table({"x": [1.0, float("nan")], "y": ["a", "b"]}))
    assert not same_table(one, pa.table({"x": [2.0, float("nan")], "y": ["a", "b"]}))
    assert not same_table(one, pa.table({"x": [1.0, float("nan")], "y": ["a", "c"]}))
    assert not same_table(one, one.slice(0, 1))
    assert not same_table(one, one.rename_columns(["x", "z"]))
    assert not same_table(one.slice(0, 0), one.slice(0, 0).rename_columns(["x", "z"]))


def test_what_counts_as_found():
    values = ["a", "", None, ["a", "b"], [], float("nan"), 3, b"x", ("a", "b"), np.array(["a"]), 0]
    assert relevance_texts(values) == ["a", None, None, "a\nb", None, None, "3", "b'x'", "a\nb", "a", "0"]
    features = FeatureSet({"x": np.ones((3, 1))}, meta=meta_table(3, labels=["p", None, "p"]))
    assert relevance_of(features) is None
    assert relevance_of(features, "labels").tolist() == [("value", "p"), ("row", 1), ("value", "p")]


# ---- arrays


def npy(array: np.ndarray, version=(1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue()


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["a", "bc"]),
        np.zeros((0, 3)),
        np.array(5),
    ],
    ids=["C", "F", "text", "empty", "one"],
)
def test_arrays_come_back(array, version, tmp_path):
    content = npy(array, version)
    (tmp_path / "a.npy").write_bytes(content)
    for back in (read_npy(io.BytesIO(content), len(content), "a.npy"), open_npy(tmp_path / "a.npy")):
        np.testing.assert_array_equal(back, array)
        assert back.dtype == array.dtype
        assert back.shape == array.shape


@pytest.mark.parametrize(
    ("content", "size", "said"),
    [
        (npy(np.ones(3))[:-1], None, "24 bytes, but 23 bytes follow: cut off or changed"),
        (npy(np.ones(3)) + b"x", None, "24 bytes, but 25 bytes follow: something was appended"),
        (npy(np.ones(3))[:-1], len(npy(np.ones(3))), "expected 24 bytes got 23"),
        (npy(np.ones(3)) + b"x", len(npy(np.ones(3))), "a continues after its last value"),
        (npy(np.ones(3), (3, 0)), None, "version (3, 0) is for structured values"),
        (npy(np.zeros(2, [("x", "f4")])), None, "numbers, bools or texts are read"),
        (npy(np.zeros(2, "S1")).replace(b"|S1", b"|S0"), None, "numbers, bools or texts are read"),
        (npy(np.zeros(2)).replace(b"(2,)", b"(-2,"), None, "a"),
    ],
)
def test_arrays_that_cannot_be_true(content, size, said):
    with pytest.raises(InputError, match=re.escape(said)):
        read_npy(io.BytesIO(content), len(content) if size is None else size, "a")


def test_rows_written_in_any_order(tmp_path):
    path = tmp_path / "a.npy"
    empty_npy(path, (6, 3), np.dtype("float32"))
    assert np.load(path).shape == (6, 3)
    assert not np.load(path).any()
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    write_rows(path, np.array([5, 1, 2, 0]), values)
    write_rows(path, np.array([], dtype=int), values[:0], sync=True)
    np.testing.assert_array_equal(np.load(path)[[5, 1, 2, 0]], values)
    assert not np.load(path)[3:5].any()
    write_json(tmp_path / "x.json", {"b": 1, "a": [2]})
    assert (tmp_path / "x.json").read_text() == '{\n "b": 1,\n "a": [\n  2\n ]\n}\n'
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.npy", "x.json"]


# ---- Arrow


def test_types_of_other_tables_become_plain():
    table = pa.table(
        {
            "d": pa.array(["x", "y"]).dictionary_encode(),
            "l": pa.array(["x", "y"], pa.large_string()),
            "ll": pa.array([["x"], []], pa.large_list(pa.large_string())),
            "i": pa.array([1, 2], pa.int8()),
        },
    ).replace_schema_metadata({"a": "b"})
    plain = plain_table(table)
    assert plain.schema.equals(
        pa.schema([("d", pa.string()), ("l", pa.string()), ("ll", pa.list_(pa.string())), ("i", pa.int8())])
    )
    assert plain.schema.metadata is None
    assert plain.to_pydict() == table.to_pydict()


def test_tables_with_names_of_their_own():
    with pytest.raises(InputError, match='the table has several columns "a"; rename them'):
        from_arrow(pa.table([pa.array([[1.0]]), pa.array([[1.0]])], names=["a", "a"]))
    numbered = pa.table({"a.10": [3.0], "a.2": [2.0], "a.0": [1.0], "captions": ["c"]})
    features = from_arrow(numbered)
    assert features.z["a"].tolist() == [[1.0, 2.0, 3.0]]
    assert features.text.tolist() == ["c"]
    for groups, said in (({"a": ["x"]}, r"no column \['x'\] for modality \"a\""), ({"a": []}, r"no column \[\] for")):
        with pytest.raises(InputError, match=said):
            from_arrow(numbered, groups)
    both = pa.table({"a": [[1.0]], "captions": ["c"], "text": ["t"]})
    assert from_arrow(both).meta.column_names == ["captions", "text", "id"]
    described = FeatureSet({"a": np.ones((1, 2))}, meta=pa.table({"id": ["x"], "v": [[1.0]]}))
    with pytest.raises(InputError, match='column "v" that describes the rows would be taken for a modality'):
        to_arrow(described)
    for name in ("a", "b.0", "b.std.1"):
        with pytest.raises(InputError, match="would be taken for a modality"):
            to_arrow(FeatureSet({"a": np.ones((1, 2))}, meta=pa.table({"id": ["x"], name: [1.0]})))


def test_imputed_columns_of_some_modalities():
    table = pa.table({"a": [[1.0], None, None], "a.imputed": [None, [2.0], None], "b": [[1.0], [2.0], None]})
    features = from_arrow(table)
    assert features.imputed.tolist() == [[False, False], [True, False], [False, False]]
    assert features.std is None
    np.testing.assert_array_equal(features.z["a"].ravel(), [1.0, 2.0, np.nan])
    with_std = from_arrow(table.append_column("a.std", pa.array([None, [0.5], None])))
    np.testing.assert_array_equal(with_std.std["a"].ravel(), [0.0, 0.5, np.nan])
    assert list(with_std.std) == ["a"]
