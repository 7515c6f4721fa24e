"""A Parquet file copied in pieces is what `open_features` reads, and its errors are the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from calmrl.data import FeatureSet, open_features
from calmrl.data.features import formats as parquet_copy
from calmrl.data.features.formats import copy_parquet
from calmrl.errors import InputError
from calmrl.interop import from_arrow, to_parquet
from calmrl.interop.containers import write_table

ROWS = 57


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    image = [list(row) for row in rng.normal(size=(ROWS, 3)).astype("float32")]
    sound = [None if i < 20 or i % 3 == 0 else list(row) for i, row in enumerate(rng.normal(size=(ROWS, 2)))]
    return pa.table(
        {
            "id": [f"item {i}" for i in range(ROWS)],
            "image": pa.array(image, pa.list_(pa.float32())),
            "captions": ["one", "two", "three"] * 19,
            "sound": pa.array(sound, pa.list_(pa.float64(), 2)),
            "weight": np.arange(ROWS) / 2,
        }
    )


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(parquet_copy, "PIECE_BYTES", 8 * 5 * 7)


def test_pieces_hold_what_the_file_holds(tmp_path, table):
    write_table(table, tmp_path / "a.parquet", row_group_size=10)
    copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")
    whole, copy = open_features(tmp_path / "a.parquet"), open_features(tmp_path / "copy")
    copy.verify()
    assert copy.names == whole.names
    assert np.array_equal(copy.present, whole.present)
    for name in whole.z:
        np.testing.assert_array_equal(copy.z[name], whole.z[name])
    assert list(copy.ids) == list(whole.ids)
    assert list(copy.text) == list(whole.text)
    assert list(copy.column("weight")) == list(whole.column("weight"))


@pytest.mark.parametrize("wide", [False, True])
def test_only_observations_of_an_imputed_file_are_copied(tmp_path, table, wide):
    features = from_arrow(table)
    assert not features.present.all()
    z = {name: np.where(np.isnan(values), 7, values) for name, values in features.z.items()}
    imputed = FeatureSet(z, features.present, features.meta, imputed=~features.present)
    to_parquet(imputed, tmp_path / "a.parquet", wide)
    copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")
    copy = open_features(tmp_path / "copy")
    assert np.array_equal(copy.present, features.present)
    for name, values in features.z.items():
        np.testing.assert_array_equal(copy.z[name], values)


def test_rows_without_ids_are_numbered(tmp_path, table):
    write_table(table.drop_columns(["id"]), tmp_path / "a.parquet")
    copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")
    assert list(open_features(tmp_path / "copy").ids) == [str(i) for i in range(ROWS)]


def test_lists_of_other_lengths_further_on_are_an_error(tmp_path, table):
    lists = table["image"].to_pylist()
    lists[40] = lists[40] + [1.0]
    changed = table.set_column(1, "image", pa.array(lists, pa.list_(pa.float32())))
    write_table(changed, tmp_path / "a.parquet", row_group_size=10)
    with pytest.raises(InputError, match=r'a\.parquet: the lists of column "image" have 3 to 4 entries'):
        copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")


def test_a_column_that_is_null_throughout_is_an_error(tmp_path, table):
    changed = table.set_column(3, "sound", pa.nulls(ROWS, pa.list_(pa.float64())))
    write_table(changed, tmp_path / "a.parquet")
    with pytest.raises(InputError, match='column "sound" is null throughout'):
        copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")


def test_a_damaged_file_is_named(tmp_path, table):
    write_table(table, tmp_path / "a.parquet", row_group_size=10)
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:400] = bytes(396)
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.parquet"):
        copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")


def test_a_table_of_vectors_alone_has_rows_all_the_same(tmp_path):
    """Without a column that describes the rows they are numbered."""
    alone = pa.table({"image": [[1.0, 2.0], [3.0, 4.0]], "sound": [None, [5.0]]})
    write_table(alone, tmp_path / "rows.parquet")
    copy_parquet(tmp_path / "rows.parquet", tmp_path / "rows")
    for features in (from_arrow(alone), open_features(tmp_path / "rows.parquet"), open_features(tmp_path / "rows")):
        assert features.ids.tolist() == ["0", "1"]
        assert features.present.tolist() == [[True, False], [True, True]]
