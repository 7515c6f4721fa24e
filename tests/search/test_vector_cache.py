"""Vectors by content: what was written is found again, and what was cut off is as if it were not there."""

from __future__ import annotations

import os

import numpy as np
import pytest

from calmrl.search.collection import sha256
from calmrl.search.vector_cache import VectorCache

KEYS = [sha256(bytes([i])) for i in range(5)]
VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_kept_and_found_again(tmp_path) -> None:
    cache = VectorCache(tmp_path, 3)
    cache.add(KEYS[:2], VECTORS[:2])
    cache.add(KEYS[2:], VECTORS[2:])
    again = VectorCache(tmp_path, 3)
    assert len(again) == 5
    np.testing.assert_array_equal(again.take(reversed(KEYS)), VECTORS[::-1])
    assert again.take([]).shape == (0, 3)
    with pytest.raises(ValueError, match="2 keys for vectors of shape"):
        cache.add(KEYS[:2], VECTORS)


@pytest.mark.parametrize("file", ["vectors.f32", "keys.txt"])
def test_every_cut_leaves_whole_vectors(tmp_path, file) -> None:
    VectorCache(tmp_path / "whole", 3).add(KEYS, VECTORS)
    whole = {name: (tmp_path / "whole" / name).read_bytes() for name in ("vectors.f32", "keys.txt")}
    for cut in range(0, len(whole[file]), 7):
        for name, content in whole.items():
            (tmp_path / name).write_bytes(content)
        os.truncate(tmp_path / file, cut)
        cache = VectorCache(tmp_path, 3)
        kept = cut // (12 if file == "vectors.f32" else 65)
        assert [key in cache for key in KEYS] == [i < kept for i in range(5)]
        cache.add(KEYS[kept:], VECTORS[kept:])
        np.testing.assert_array_equal(VectorCache(tmp_path, 3).take(KEYS), VECTORS)
