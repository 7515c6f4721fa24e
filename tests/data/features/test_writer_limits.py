"""A feature directory while it is written: the room it needs, what reaches the disk when, and what a header may say."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calmrl._support.engine import LocalEngine
from calmrl.data.features import distributed_rows as spread_rows
from calmrl.data.features import writer as draft_files
from calmrl.data.features.directory import read_header
from calmrl.data.features.distributed_rows import DistributedArrays, DistributedDirectory, stored_rows
from calmrl.data.features.feature_set import FeatureSet, open_features, part_of
from calmrl.data.features.writer import STATE, DraftFiles, FeatureWriter, write_features
from calmrl.errors import InputError

N = 4
WIDTHS = {"image": 3, "text": 2}
IDS = [str(row) for row in range(N)]


def arrays(dtype: str = "float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(N, width)).astype(dtype) for name, width in WIDTHS.items()}


def with_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**12, 10**12 - free, free))


# ---- the writer


@pytest.mark.parametrize(
    ("dtype", "std", "size"), [("float32", False, 80), ("float16", True, 80), ("float64", True, 320)]
)
def test_the_room_that_the_values_need(tmp_path: Path, monkeypatch, dtype: str, std: bool, size: int) -> None:
    with_room(monkeypatch, size - 1)
    with pytest.raises(InputError, match=rf"f needs {size} bytes but {size - 1} bytes are free; make room"):
        FeatureWriter(tmp_path / "f", WIDTHS, IDS, dtype=dtype, std=std)
    assert not list(tmp_path.iterdir())
    with_room(monkeypatch, size)
    FeatureWriter(tmp_path / "f", WIDTHS, IDS, dtype=dtype, std=std).discard()
    assert not list(tmp_path.iterdir())


def test_folders_above_are_made_and_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    assert len(write_features(tmp_path / "a" / "b" / "f", arrays())) == N
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file exists; remove it or choose another place"):
        FeatureWriter(tmp_path / "file", WIDTHS, IDS)
    with pytest.raises(InputError, match='cannot be called "IMPUTED"'):
        FeatureWriter(tmp_path / "f", {"IMPUTED": 2}, IDS)


def test_values_reach_the_disk_before_the_state_says_so(tmp_path: Path, monkeypatch) -> None:
    with FeatureWriter(tmp_path / "f", WIDTHS, IDS, std=True) as writer:
        assert (writer.dtype, writer.std, writer.n) == (np.float32, True, N)
        synced = []
        monkeypatch.setattr(os, "fsync", lambda number: synced.append(np.load(writer.part / STATE).any()))
        writer.fill(slice(2), {"image": arrays()["image"][:2]}, std={"image": arrays()["image"][:2]})
        assert synced == [False, False]  # image.npy and image.std.npy
        assert np.load(writer.part / STATE).tolist() == writer.state.tolist() == [[2, 2, 0, 0], [0, 0, 0, 0]]
        assert writer.todo("image").tolist() == [2, 3]
        opened = list(writer._files.values())
        with pytest.raises(InputError, match=r"2 of 4 rows of image are not written yet \(first: row 2\)"):
            writer.finish()
        with pytest.raises(InputError, match="pass std for each modality of z"):
            writer.fill(slice(2), {"text": arrays()["text"][:2]}, std={"image": arrays()["image"][:2]})
        with pytest.raises(InputError, match="pass std for each modality of z"):
            writer.fill(slice(2), {"text": arrays()["text"][:2]})
    assert all(file.closed for file in opened)
    assert not writer._files


def test_what_was_observed_is_never_called_imputed(tmp_path: Path) -> None:
    present = np.array([[True, False]] * N)
    features = write_features(tmp_path / "f", arrays(), present, imputed=np.ones((N, 2), bool))
    assert features.imputed is not None
    assert features.imputed.tolist() == [[False, True]] * N
    written = json.loads((tmp_path / "f" / "features.json").read_text())
    assert list(written["files"]) == ["image.npy", "imputed.npy", "meta.parquet", "present.npy", "text.npy"]
    assert (written["version"], written["rows"], written["std"], written["dtype"]) == (1, N, False, "float32")
    assert (tmp_path / "f" / "features.json").read_text().startswith('{\n "format"')
    write_features(tmp_path / "g", arrays(), ~present)
    assert not (tmp_path / "g" / "imputed.npy").exists()


def test_the_dtype_holds_all_modalities(tmp_path: Path) -> None:
    z = {"image": arrays("float16")["image"], "text": arrays()["text"]}
    assert {array.dtype for array in write_features(tmp_path / "f", z).z.values()} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (STATE, np.zeros((N, 2), np.uint8), r"holds uint8 of shape \(4, 2\); \(2, 4\) was begun"),
        (STATE, np.zeros((2, N), np.int16), r"holds int16 of shape \(2, 4\); \(2, 4\) was begun"),
        ("present.npy", np.zeros((2, N), bool), r"holds bool of shape \(2, 4\); \(4, 2\) was begun"),
        ("present.npy", np.zeros((N, 2), np.int8), r"holds int8 of shape \(4, 2\)"),
    ],
)
def test_a_damaged_state_is_not_continued(tmp_path: Path, name: str, content: np.ndarray, said: str) -> None:
    FeatureWriter(tmp_path / "f", WIDTHS, IDS).close()
    (part_of(tmp_path / "f") / STATE).unlink()
    np.save(part_of(tmp_path / "f") / name, content)
    with pytest.raises(InputError, match=said):
        FeatureWriter(tmp_path / "f", WIDTHS, IDS)


# ---- the draft of a run that is spread


@pytest.mark.parametrize(("std", "size"), [(False, 4 * (20 + 4)), (True, 4 * (40 + 4))])
def test_the_room_that_a_draft_needs(tmp_path: Path, monkeypatch, std: bool, size: int) -> None:
    (tmp_path / "table").touch()
    (tmp_path / "f").mkdir()
    draft = DraftFiles(str(tmp_path / "f"), WIDTHS, N, "float32", std)
    with_room(monkeypatch, size - 1)
    with pytest.raises(InputError, match=rf" needs {size} bytes but {size - 1} bytes are free; make room"):
        draft.begin(tmp_path / "table")
    with_room(monkeypatch, size)
    draft.begin(tmp_path / "table")
    names = {"image.npy", "text.npy", "present.npy", "imputed.npy", "meta.parquet"}
    assert {file.name for file in (tmp_path / "f").iterdir()} == names | (
        {"image.std.npy", "text.std.npy"} if std else set()
    )


@pytest.mark.parametrize("any_imputed", [True, False])
def test_a_draft_in_pieces_is_what_one_call_writes(tmp_path: Path, any_imputed: bool) -> None:
    z, std = arrays(), {name: np.abs(values) for name, values in arrays().items()}
    present = np.array([[True, True]] * 3 + [[True, not any_imputed]])
    once = write_features(tmp_path / "once", z, present, imputed=~present, std=std, info={"a": 1})
    (tmp_path / "pieces").mkdir()
    draft = DraftFiles(str(tmp_path / "pieces"), WIDTHS, N, "float32", std=True)
    draft.begin(tmp_path / "once" / "meta.parquet")
    for start, stop in ((3, 4), (0, 3)):
        part = slice(start, stop)
        draft.write_values(
            start, {k: v[part] for k, v in z.items()}, ~present[part], {k: v[part] for k, v in std.items()}
        )
        draft.write_mask("present.npy", start, present[part])
    for _ in range(2):  # as after a stop just before the renaming
        draft.finish({"a": 1}, LocalEngine(), any_imputed)
    once.verify()
    for file in (tmp_path / "once").iterdir():
        assert (tmp_path / "pieces" / file.name).read_bytes() == file.read_bytes(), file.name
    assert len(list((tmp_path / "pieces").iterdir())) == len(list((tmp_path / "once").iterdir()))


def test_a_value_that_does_not_fit_is_named_by_its_row(tmp_path: Path) -> None:
    values, kept = np.ones((3, 2)), np.array([True, False, True])
    values[1:] = np.inf
    with pytest.raises(InputError, match="text has a value in row 9 that is not finite or does not fit in float16"):
        draft_files.stored_values("text", values, kept, np.array([5, 7, 9]), np.dtype("float16"))
    stored = draft_files.stored_values(
        "text", values, kept & ~np.isinf(values[:, 0]), np.arange(3), np.dtype("float16")
    )
    assert stored.dtype == np.float16
    assert np.isnan(stored[1:]).all()
    assert not np.isnan(stored[0]).any()


# ---- the header


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "has feature format 2, this calmrl reads up to 1; upgrade"),
        ({"version": True}, "version should be a number from 0 on; got True"),
        ({"rows": -1}, "rows should be a number from 0 on; got -1"),
        ({"rows": 4.0}, "rows should be a number from 0 on; got 4.0"),
        ({"modalities": [1]}, r"modalities should be an object; got \[1\]"),
        ({"modalities": {"image": "3"}}, r"modalities\.image should be a number from 0 on; got '3'"),
        ({"info": "x"}, "info should be an object; got 'x'"),
        ({"files": []}, r"files should be an object; got \[\]"),
        ({"files": {"a.npy": 5}}, r"files\.a\.npy should be an object; got 5"),
        ({"files": {"a.npy": {"bytes": "5", "sha256": ""}}}, r"files\.a\.npy\.bytes should be a number from 0 on"),
        ({"files": {"a.npy": {"bytes": 5, "sha256": 0}}}, r"files\.a\.npy\.sha256 should be a text; got 0"),
        ({"files": {"../a.npy": {"bytes": 5, "sha256": ""}}}, r"files\.\.\./a\.npy is no file of the directory"),
        ({"format": "other"}, "does not say format 'calmrl-features'"),
        ({"modalities": {"a/b": 3}}, "a/b"),
    ],
)
def test_a_header_says_what_is_wrong_with_it(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    good = {"format": "calmrl-features", "version": 1, "rows": 0, "modalities": {"image": 0}, "info": {}, "files": {}}
    (tmp_path / "features.json").write_text(json.dumps(good))
    assert read_header(tmp_path) == good
    (tmp_path / "features.json").write_text(json.dumps(good | change))
    with pytest.raises(InputError, match=said):
        read_header(tmp_path)


# ---- a feature set


def test_numbers_of_rows() -> None:
    features = FeatureSet(arrays(), name="four")
    assert features.row_numbers(np.array([-4, 3, -1])).tolist() == [0, 3, 3]
    assert features.row_numbers(np.array([], dtype=int)).tolist() == []
    for wrong in ([-5], [4]):
        with pytest.raises(InputError, match=rf"rows must lie between 0 and 3; got {wrong[0]} to {wrong[0]}"):
            features.row_numbers(np.array(wrong))
    assert repr(features) == "FeatureSet(four: 4 rows; image 3 (4 of 4), text 2 (4 of 4))"
    assert repr(FeatureSet(arrays(), path=Path("x"))).startswith("FeatureSet(x: 4 rows")
    assert repr(FeatureSet(arrays())).startswith("FeatureSet(in memory: 4 rows")


def test_opening_says_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_features(tmp_path / "f")
    assert str(caught.value) == f"no features at {tmp_path / 'f'}"
    features = write_features(tmp_path / "f", arrays(), split=["train"] * N, info={"a": 1})
    assert (features.name, features.source, features.path) == ("f", str(tmp_path / "f"), tmp_path / "f")
    some = features.select("train")
    assert (some.name, some.source, some.info, some.path) == ("f", str(tmp_path / "f"), {"a": 1}, None)
    with pytest.raises(InputError, match=r"only a feature directory with a features\.json has checksums"):
        some.verify()
    (tmp_path / "f" / "features.json").unlink()
    with pytest.raises(InputError, match="has checksums to verify"):
        features.verify()


# ---- rows in blocks


def test_rows_of_a_directory_in_blocks(tmp_path: Path, monkeypatch) -> None:
    z, present = arrays(), np.array([[True, row % 2 == 0] for row in range(N)])
    write_features(tmp_path / "f", z, present)
    store = stored_rows(tmp_path / "f", tmp_path / "f" / "present.npy")
    assert (store.names, store.widths, store.rows) == (("image", "text"), (3, 2), N)
    assert store.blocks() == [(0, N)]
    monkeypatch.setattr(spread_rows, "BLOCK_BYTES", 3 * 20)
    assert store.blocks() == [(0, 3), (3, 4)]
    monkeypatch.setattr(spread_rows, "BLOCK_BYTES", 3 * 20 - 1)
    assert store.blocks() == [(0, 2), (2, 4)]
    released = []
    monkeypatch.setattr(spread_rows, "release", lambda array: released.append(array.shape[1]))
    rows = DistributedDirectory(store, LocalEngine())
    kinds = [
        rows,
        DistributedArrays(z, present, LocalEngine()),
        DistributedArrays(z, present, LocalEngine()).ordered(["text", "image"]),
    ]
    for number, spread in enumerate(kinds):
        assert spread.checked
        assert (len(spread), list(spread)) == (2, ["image", "text"] if number < 2 else ["text", "image"])
        assert np.array_equal(spread["text"], z["text"], equal_nan=True) or number == 0
        sizes = list(spread.each(lambda views, more: (len(views), views.names, more), 7))
        assert sizes == [(2, tuple(spread.names), 7)] * 2
        masks = np.concatenate([views.present.numpy() for views in spread.views()])
        assert np.array_equal(masks, present if number < 2 else present[:, ::-1])
    assert released == [3, 2] * 4  # after each block of `each` and of `views`


def test_modalities_of_different_length_are_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.zeros((3, 2)))
    np.save(tmp_path / "text.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"modalities differ in their number of rows \(image: 3, text: 2\)"):
        stored_rows(tmp_path, tmp_path / "present.npy")
