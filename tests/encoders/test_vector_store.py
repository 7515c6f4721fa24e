"""Vectors by content: what was written is found again, and what was cut off is as if it were not there."""

from __future__ import annotations

import os

import numpy as np
import pytest

from calmrl.encoders.vector_store import VectorStore, text_key
from calmrl.errors import InputError

KEYS = [text_key(str(i)) for i in range(5)]
VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_kept_and_found_again(tmp_path) -> None:
    store = VectorStore(tmp_path, "image", 3)
    store.add(KEYS[:2], VECTORS[:2])
    store.add(KEYS[2:], VECTORS[2:])
    again = VectorStore(tmp_path, "image", 3)
    assert len(again) == 5
    np.testing.assert_array_equal(again.get(KEYS[::-1]), VECTORS[::-1])
    assert again.get([]).shape == (0, 3)
    with pytest.raises(ValueError, match="2 keys for vectors of shape"):
        store.add(KEYS[:2], VECTORS)
    with pytest.raises(InputError, match="a file changed"):
        store.get([text_key("another")])


@pytest.mark.parametrize("file", ["image.rows", "image.sha256"])
def test_every_cut_leaves_whole_vectors(tmp_path, file) -> None:
    VectorStore(tmp_path / "whole", "image", 3).add(KEYS, VECTORS)
    whole = {name: (tmp_path / "whole" / name).read_bytes() for name in ("image.rows", "image.sha256")}
    for cut in range(0, len(whole[file]), 7):
        for name, content in whole.items():
            (tmp_path / name).write_bytes(content)
        os.truncate(tmp_path / file, cut)
        store = VectorStore(tmp_path, "image", 3)
        kept = cut // (12 if file == "image.rows" else 65)
        assert [key in store for key in KEYS] == [i < kept for i in range(5)]
        store.add(KEYS[kept:], VECTORS[kept:])
        np.testing.assert_array_equal(VectorStore(tmp_path, "image", 3).get(KEYS), VECTORS)
