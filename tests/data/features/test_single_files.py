"""Features in one file: which arrays are modalities, which are columns, and how wide vectors are found to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from calmrl.data.features import formats as parquet_copy
from calmrl.data.features.feature_set import open_features, read_table
from calmrl.data.features.formats import copy_parquet
from calmrl.errors import InputError

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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"present": np.ones((N, 2), bool)}, r'"present" has shape \(3, 2\) but there are 1 modalities \(image\)'),
        ({"imputed": np.ones((2, 1), bool)}, r'"imputed" has shape \(2, 1\) but there are 1 modalities'),
        ({"n": [1, 2]}, r'"n" has shape \(2,\), neither a modality .* nor a column of 3 entries; name .* of image'),
        ({"n": np.ones((N, 2), int)}, r'"n" has shape \(3, 2\), neither'),
        ({"n": np.ones((N, 2, 1))}, r'"n" has shape \(3, 2, 1\), neither'),
        ({"n": np.array(4)}, r'"n" has shape \(\), neither'),
    ],
)
def test_arrays_that_are_nothing(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "a.npz", image=IMAGE, **more)
    with pytest.raises(InputError, match=said):
        open_features(tmp_path / "a.npz")
    if "n" in more:
        assert len(open_features(tmp_path / "a.npz", ["image"])) == N


@pytest.mark.parametrize(
    ("notes", "names"),
    [
        (None, ("image", "sound")),
        ({"modalities": '["sound", "image"]', "note": "x", "n": '["a", "b", "c"]'}, ("sound", "image")),
        ({"modalities": '["sound"]'}, ("sound",)),
    ],
)
def test_the_order_of_tensors(tmp_path: Path, notes: dict[str, str] | None, names: tuple[str, ...]) -> None:
    tensors = {"sound": torch.ones(N, 1), "image": torch.from_numpy(IMAGE).to(torch.bfloat16)}
    save_file(tensors, tmp_path / "a.safetensors", metadata=notes)
    if notes is not None and len(names) == 1:
        with pytest.raises(InputError, match=r'"image" has shape \(3, 2\), neither'):
            open_features(tmp_path / "a.safetensors")
        return
    features = open_features(tmp_path / "a.safetensors")
    assert features.names == names
    assert features.z["image"].dtype == np.float32
    assert features.z["image"].tolist() == IMAGE.tolist()
    assert "note" not in features.meta.column_names


def test_a_file_by_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [[1.0, 2.0]]}), tmp_path / "a.parquet")
    assert open_features(tmp_path / "a.parquet").name == "a"
    with pytest.raises(InputError, match=r"none\.parquet is missing; the directory is incomplete"):
        read_table(tmp_path / "none.parquet")
    np.save(tmp_path / "a b .npy", IMAGE)
    with pytest.raises(InputError, match="modality name 'a b ' cannot be used"):
        open_features(tmp_path)


@pytest.mark.parametrize(("pieces", "sizes"), [(1, [1, 1, 1, 1]), (8 * 5 * 2 - 1, [1, 1, 1, 1]), (8 * 5 * 2, [2, 2])])
def test_pieces_of_a_parquet_file(tmp_path: Path, monkeypatch, pieces: int, sizes: list[int]) -> None:
    """The first row groups of `sound` hold nothing: its width is that of a later one."""
    table = pa.table(
        {"image": [[1.0, 2.0]] * 4, "sound": pa.array([None, None, [1.0, 2.0, 3.0], None], pa.list_(pa.float32()))}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    filled = []
    plain = parquet_copy.FeatureWriter.fill

    def fill(self, rows, z, present):
        filled.append(rows.stop - rows.start)
        plain(self, rows, z, present)

    monkeypatch.setattr(parquet_copy, "PIECE_BYTES", pieces)
    monkeypatch.setattr(parquet_copy.FeatureWriter, "fill", fill)
    copy_parquet(tmp_path / "a.parquet", tmp_path / "copy")
    copy = open_features(tmp_path / "copy")
    assert {name: (array.shape[1], array.dtype.name) for name, array in copy.z.items()} == {
        "image": (2, "float64"), "sound": (3, "float64"),
    }  # fmt: skip
    assert copy.present[:, 1].tolist() == [False, False, True, False]
    assert filled == sizes
    assert not (tmp_path / "copy.part").exists()
