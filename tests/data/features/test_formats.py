"""Features in one file: which arrays are modalities, which are columns; and Parquet copied in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from calmrl.data import FeatureSet, open_features
from calmrl.data.features import formats
from calmrl.data.features.feature_set import read_table
from calmrl.data.features.formats import FORMATS, copy_parquet
from calmrl.errors import InputError
from calmrl.interop import from_arrow, to_parquet
from calmrl.interop.containers import write_table

N = 3
IMAGE = np.arange(6, dtype="float32").reshape(N, 2)


def test_columns_of_an_npz(tmp_path: Path) -> None:
    text = np.ones((N, 4), "float32")
    masks = {"present": np.array([[1, 1], [0, 1], [1, 0]]), "imputed": np.array([[0, 0], [1, 0], [0, 0]], bool)}
    about = {
        "id": ["a", "b", "c"],
        "labels": [1, 2, 3],
        "captions": ["x", "y", "z"],
        "split": ["train"] * 3,
        "n": [7, 8, 9],
    }
    np.savez(tmp_path / "a.npz", image=IMAGE, text=text, **masks, **about)
    features = open_features(tmp_path / "a.npz")
    assert (features.names, features.name, features.source) == (("image", "text"), "a", str(tmp_path / "a.npz"))
    assert features.ids.tolist() == about["id"]
    assert features.text.tolist() == about["captions"]  # a modality is called text
    assert (features.labels.tolist(), features.split.tolist()) == ([1, 2, 3], ["train"] * 3)
    assert features.column("n").tolist() == [7, 8, 9]
    assert features.present.tolist() == (masks["present"] == 1).tolist()
    assert features.imputed.tolist() == masks["imputed"].tolist()
    chosen = open_features(tmp_path / "a.npz", ["text"])
    assert chosen.present.tolist() == [[True], [True], [False]]
    assert chosen.imputed.tolist() == [[False]] * 3
    np.savez(tmp_path / "b.npz", image=IMAGE, ids=["d", "e", "f"], id=["a", "b", "c"], text=["x", "y", "z"])
    features = open_features(tmp_path / "b.npz")
    assert (features.ids.tolist(), features.text.tolist()) == (["d", "e", "f"], ["x", "y", "z"])
    assert features.imputed is None
    np.savez(tmp_path / "c.npz", image=np.where([[True], [False], [True]], IMAGE, np.nan))
    assert open_features(tmp_path / "c.npz").present.tolist() == [[True], [False], [True]]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"present": np.ones((N, 2), bool)}, r'"present" has shape \(3, 2\) but there are 1 modalities \(image\)'),
        ({"imputed": np.ones((2, 1), bool)}, r'"imputed" has shape \(2, 1\) but there are 1 modalities'),
        ({"n": [1, 2]}, r'"n" has shape \(2,\), neither a modality .* nor a column of 3 entries; name .* of image'),
        ({"n": np.ones((N, 2), int)}, r'"n" has shape \(3, 2\), neither'),
        ({"n": np.ones((N, 2, 1))}, r'"n" has shape \(3, 2, 1\), neither'),
        ({"n": np.array(4)}, r'"n" has shape \(\), neither'),
        ({"image": [1, 2]}, "no array of shape"),
    ],
)
def test_arrays_that_are_nothing(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "a.npz", **{"image": IMAGE} | more)
    with pytest.raises(InputError, match=said):
        open_features(tmp_path / "a.npz")
    if "n" in more:
        assert len(open_features(tmp_path / "a.npz", ["image"])) == N


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("notes", "names"),
    [
        (None, ("image", "sound")),
        ({"modalities": '["sound", "image"]', "note": "x", "n": '["a", "b", "c"]'}, ("sound", "image")),
        ({"modalities": '["sound"]'}, ("sound",)),
    ],
)
def test_the_order_of_tensors(tmp_path: Path, notes, names: tuple[str, ...], dtype: torch.dtype) -> None:
    tensors = {"sound": torch.ones(N, 1), "image": torch.from_numpy(IMAGE).to(dtype)}
    save_file(tensors, tmp_path / "a.safetensors", metadata=notes)
    if notes is not None and len(names) == 1:
        with pytest.raises(InputError, match=r'"image" has shape \(3, 2\), neither'):
            open_features(tmp_path / "a.safetensors")
        return
    features = open_features(tmp_path / "a.safetensors")
    assert features.names == names
    assert features.z["image"].dtype == ("float16" if dtype == torch.float16 else "float32")
    assert features.z["image"].tolist() == IMAGE.tolist()
    assert "note" not in features.meta.column_names


def test_a_file_by_its_name(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "three.toy").write_text("3")
    read = lambda path, modalities: FeatureSet({"image": np.ones((int(path.read_text()), 2))})  # noqa: E731
    monkeypatch.setitem(FORMATS, ".toy", read)
    assert len(open_features(tmp_path / "three.toy")) == 3
    for form in (".npz", ".safetensors"):
        (tmp_path / f"x{form}").write_bytes(b"12345678")
        with pytest.raises(InputError, match=rf"cannot be read as \{form}"):
            open_features(tmp_path / f"x{form}")
    pq.write_table(pa.table({"image": [[1.0, 2.0]]}), tmp_path / "a.parquet")
    assert open_features(tmp_path / "a.parquet").name == "a"
    with pytest.raises(InputError, match=r"none\.parquet is missing; the directory is incomplete"):
        read_table(tmp_path / "none.parquet")
    np.save(tmp_path / "a b .npy", IMAGE)
    with pytest.raises(InputError, match="modality name 'a b ' cannot be used"):
        open_features(tmp_path)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 2)])
def test_columns_of_a_parquet_file(tmp_path: Path, kind: pa.DataType) -> None:
    table = {"image": pa.array([[1.0, 2.0], None], kind), "id": ["r0", "r1"], "text": [["two", "captions"]] * 2}
    pq.write_table(pa.table(table | {"words": pa.array([[1.0, 2.0], [3.0, 4.0]], kind)}), tmp_path / "a.parquet")
    features = open_features(tmp_path / "a.parquet")
    assert features.names == ("image", "words")
    assert features.present.tolist() == [[True, True], [False, True]]
    np.testing.assert_array_equal(features.z["image"], [[1, 2], [np.nan, np.nan]])
    assert (features.ids[1], features.text[0]) == ("r1", ["two", "captions"])
    assert open_features(tmp_path / "a.parquet", ["words"]).names == ("words",)


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pa.array([[1.0, 2.0], [1.0]]), "have 1 to 2 entries"),
        (pa.array([[1.0, None], [1.0, 2.0]]), "null entries"),
        (pa.array([None, None], pa.list_(pa.float32())), "null throughout"),
        (pa.array([[], [], None], pa.list_(pa.float32())), "are empty; a missing modality is null"),
        (pa.array([1.0, 2.0]), "no column of lists of floats"),
    ],
)
def test_parquet_refuses(tmp_path: Path, column: pa.Array, said: str) -> None:
    pq.write_table(pa.table({"image": column}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=said):
        open_features(tmp_path / "a.parquet")


# ---- Parquet copied in pieces


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


def test_pieces_hold_what_the_file_holds(tmp_path, table, monkeypatch):
    monkeypatch.setattr(formats, "PIECE_BYTES", 8 * 5 * 7)
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


def test_a_table_of_vectors_alone_has_rows_all_the_same(tmp_path):
    """Without a column that describes the rows they are numbered."""
    alone = pa.table({"image": [[1.0, 2.0], [3.0, 4.0]], "sound": [None, [5.0]]})
    write_table(alone, tmp_path / "rows.parquet")
    copy_parquet(tmp_path / "rows.parquet", tmp_path / "rows")
    for features in (from_arrow(alone), open_features(tmp_path / "rows.parquet"), open_features(tmp_path / "rows")):
        assert features.ids.tolist() == ["0", "1"]
        assert features.present.tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize(("pieces", "sizes"), [(1, [1, 1, 1, 1]), (8 * 5 * 2 - 1, [1, 1, 1, 1]), (8 * 5 * 2, [2, 2])])
def test_pieces_of_a_parquet_file(tmp_path: Path, monkeypatch, pieces: int, sizes: list[int]) -> None:
    """The first row groups of `sound` hold nothing: its width is that of a later one."""
    table = pa.table(
        {"image": [[1.0, 2.0]] * 4, "sound": pa.array([None, None, [1.0, 2.0, 3.0], None], pa.list_(pa.float32()))}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    filled = []
    plain = formats.FeatureWriter.fill

    def fill(self, rows, z, present):
        filled.append(rows.stop - rows.start)
        plain(self, rows, z, present)

    monkeypatch.setattr(formats, "PIECE_BYTES", pieces)
    monkeypatch.setattr(formats.FeatureWriter, "fill", fill)
    copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")
    copy = open_features(tmp_path / "copy")
    assert {name: (array.shape[1], array.dtype.name) for name, array in copy.z.items()} == {
        "image": (2, "float64"), "sound": (3, "float64"),
    }  # fmt: skip
    assert copy.present[:, 1].tolist() == [False, False, True, False]
    assert filled == sizes
    assert not (tmp_path / "copy.part").exists()


def test_what_cannot_be_copied_is_named(tmp_path, table):
    lists = table["image"].to_pylist()
    lists[40] = lists[40] + [1.0]
    longer = table.set_column(1, "image", pa.array(lists, pa.list_(pa.float32())))
    nothing = table.set_column(3, "sound", pa.nulls(ROWS, pa.list_(pa.float64())))
    for changed, said in (
        (longer, r'a\.parquet: .* "image" have 3 to 4 entries'),
        (nothing, '"sound" is null throughout'),
    ):
        write_table(changed, tmp_path / "a.parquet", row_group_size=10)
        with pytest.raises(InputError, match=said):
            copy_parquet(tmp_path / "a.parquet", tmp_path / said[-9:])
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:400] = bytes(396)
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.parquet"):
        copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")
