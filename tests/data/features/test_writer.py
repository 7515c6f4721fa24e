"""A feature directory while it is written: the space it needs, what reaches the disk when, and who writes the rows."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from calmrl.data.features.feature_set import part_of
from calmrl.data.features.writer import STATE, FeatureWriter, write_features
from calmrl.errors import InputError
from tests.engines.pickling_engine import PicklingEngine

N = 4
WIDTHS = {"image": 3, "text": 2}
IDS = [str(row) for row in range(N)]


def arrays(dtype: str = "float32") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(N, width)).astype(dtype) for name, width in WIDTHS.items()}


def with_space(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(10**12, 10**12 - free, free))


@pytest.mark.parametrize(
    ("dtype", "std", "size"), [("float32", False, 96), ("float16", True, 96), ("float64", True, 336)]
)
def test_the_space_that_values_and_masks_need(tmp_path: Path, monkeypatch, dtype: str, std: bool, size: int) -> None:
    with_space(monkeypatch, size - 1)
    with pytest.raises(InputError, match=rf"f needs {size} bytes but {size - 1} bytes are free; make room"):
        FeatureWriter(tmp_path / "f", WIDTHS, IDS, dtype=dtype, std=std)
    assert not list(tmp_path.iterdir())
    with_space(monkeypatch, size)
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
    image = arrays()["image"][:2]
    with FeatureWriter(tmp_path / "f", WIDTHS, IDS, std=True) as writer:
        synced = []
        monkeypatch.setattr(os, "fsync", lambda number: synced.append(np.load(writer.part / STATE).any()))
        writer.fill(slice(2), {"image": image}, std={"image": image})
        assert synced == [False, False]  # image.npy and image.std.npy
        assert np.load(writer.part / STATE).tolist() == writer.state.tolist() == [[2, 2, 0, 0], [0, 0, 0, 0]]
        assert writer.todo("image").tolist() == [2, 3]
        with pytest.raises(InputError, match=r"2 of 4 rows of image are not written yet \(first: row 2\)"):
            writer.finish()


@pytest.mark.parametrize(
    ("opened_with", "std", "message"),
    [
        (True, ("image",), "pass std for each modality of z"),
        (True, (), "pass std for each modality of z"),
        (False, ("text",), "open the writer with std=True for std"),
    ],
)
def test_deviations_go_with_the_values(tmp_path: Path, opened_with: bool, std: tuple[str, ...], message: str) -> None:
    with (
        FeatureWriter(tmp_path / "f", WIDTHS, IDS, std=opened_with) as writer,
        pytest.raises(InputError, match=message),
    ):
        writer.fill(slice(None), {"text": arrays()["text"]}, std={name: arrays()[name] for name in std})


def test_what_was_observed_is_never_called_imputed(tmp_path: Path) -> None:
    present = np.array([[True, False]] * N)
    features = write_features(tmp_path / "f", arrays(), present, imputed=np.ones((N, 2), bool))
    assert features.imputed.tolist() == [[False, True]] * N
    written = json.loads((tmp_path / "f" / "features.json").read_text())
    assert list(written["files"]) == ["image.npy", "imputed.npy", "meta.parquet", "present.npy", "text.npy"]
    assert (written["version"], written["rows"], written["std"], written["dtype"]) == (1, N, False, "float32")
    assert (tmp_path / "f" / "features.json").read_text().startswith('{\n "format"')
    write_features(tmp_path / "g", arrays(), ~present)
    assert not (tmp_path / "g" / "imputed.npy").exists()


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


# ---- rows that workers write


@pytest.mark.parametrize("any_imputed", [True, False])
def test_what_workers_write_is_what_one_call_writes(tmp_path: Path, any_imputed: bool) -> None:
    z, std = arrays(), {name: np.abs(values) for name, values in arrays().items()}
    present = np.array([[True, True]] * 3 + [[True, not any_imputed]])
    once = write_features(tmp_path / "once", z, present, imputed=~present, std=std, info={"a": 1})
    with FeatureWriter(tmp_path / "pieces", WIDTHS, IDS, std=True, info={"a": 1}) as writer:
        files = pickle.loads(pickle.dumps(writer.files))
        for rows in (np.array([3]), np.arange(3)):
            some = [{name: array[rows] for name, array in arrays.items()} for arrays in (z, std)]
            files.write(rows, some[0], np.ones_like(present[rows]), some[1])
            assert set(rows) <= set(writer.todo("text"))  # until they are marked
            writer.mark(rows, WIDTHS, present[rows], np.ones_like(present[rows]))
        engine = PicklingEngine()
        writer.finish(engine).verify()
    assert set(engine.done) == {"checksum"}
    written = {file.name: file.read_bytes() for file in (tmp_path / "pieces").iterdir()}
    assert written == {file.name: file.read_bytes() for file in once.path.iterdir()}


def test_a_value_that_does_not_fit_is_named_by_its_row(tmp_path: Path) -> None:
    values, kept = np.ones((3, 2)), np.array([[True], [False], [True]])
    values[1:] = np.inf
    with FeatureWriter(tmp_path / "f", {"text": 2}, range(10), dtype="float16") as writer:
        with pytest.raises(InputError, match="text has a value in row 9 that is not finite or does not fit in float16"):
            writer.files.write(np.array([5, 7, 9]), {"text": values}, kept)
        writer.files.write(np.arange(3), {"text": values}, kept & ~np.isinf(values[:, :1]))
        stored = np.load(writer.part / "text.npy")
    assert stored.dtype == np.float16
    assert np.isnan(stored[:3]).tolist() == [[False] * 2, [True] * 2, [True] * 2]
