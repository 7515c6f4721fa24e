"""Rows that an engine goes through block by block: of a directory, and of arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calmrl._support.engine import LocalEngine
from calmrl.data.features import distributed_rows
from calmrl.data.features.distributed_rows import DistributedArrays, DistributedDirectory, stored_rows
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError

N = 4


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(N, width)).astype("float32") for name, width in {"image": 3, "text": 2}.items()}


def test_rows_of_a_directory_in_blocks(tmp_path: Path, monkeypatch) -> None:
    z, present = arrays(), np.array([[True, row % 2 == 0] for row in range(N)])
    write_features(tmp_path / "f", z, present)
    store = stored_rows(tmp_path / "f", tmp_path / "f" / "present.npy")
    assert (store.names, store.widths, store.rows) == (("image", "text"), (3, 2), N)
    assert store.blocks() == [(0, N)]
    monkeypatch.setattr(distributed_rows, "BLOCK_BYTES", 3 * 20)
    assert store.blocks() == [(0, 3), (3, 4)]
    monkeypatch.setattr(distributed_rows, "BLOCK_BYTES", 3 * 20 - 1)
    assert store.blocks() == [(0, 2), (2, 4)]
    released = []
    monkeypatch.setattr(distributed_rows, "release", lambda array: released.append(array.shape[1]))
    rows = DistributedDirectory(store, LocalEngine())
    kinds = [
        rows,
        DistributedArrays(z, present, LocalEngine()),
        DistributedArrays(z, present, LocalEngine()).ordered(["text", "image"]),
    ]
    for number, one in enumerate(kinds):
        assert one.checked
        assert (len(one), list(one)) == (2, ["image", "text"] if number < 2 else ["text", "image"])
        assert np.array_equal(one["text"], z["text"], equal_nan=True) or number == 0
        sizes = list(one.each(lambda views, more: (len(views), views.names, more), 7))
        assert sizes == [(2, tuple(one.names), 7)] * 2
        masks = np.concatenate([views.present.numpy() for views in one.views()])
        assert np.array_equal(masks, present if number < 2 else present[:, ::-1])
    assert released == [3, 2] * 4  # after each block of `each` and of `views`


def test_modalities_of_different_length_are_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "image.npy", np.zeros((3, 2)))
    np.save(tmp_path / "text.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"modalities differ in their number of rows \(image: 3, text: 2\)"):
        stored_rows(tmp_path, tmp_path / "present.npy")
