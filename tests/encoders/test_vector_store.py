"""Vectors by content: what was written is found again, and what was cut off is as if it were not there."""

from __future__ import annotations

import os

import numpy as np
import pytest

from calmrl._support.engine import LocalEngine
from calmrl.encoders import EncoderSet
from calmrl.encoders.vector_store import VectorStore, encode_new, text_key
from calmrl.errors import InputError
from tests.support.tiny_encoders import tiny  # noqa: F401

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


@pytest.mark.parametrize("engine", [None, LocalEngine()])
def test_only_what_a_store_lacks_is_encoded(tmp_path, tiny, engine) -> None:  # noqa: F811
    picture = pytest.importorskip("PIL.Image").new("RGB", (20, 20), "red")
    picture.save(tmp_path / "a.png")
    encoders, said = EncoderSet({"image": "tiny_image", "text": "tiny_text"}, dtype="float32"), []
    store = VectorStore(tmp_path / "store", "image", 24)
    store.add(KEYS[:1], np.zeros((1, 24), np.float32))
    cells = dict(
        zip(KEYS[:4], ["not looked at", *[str(tmp_path / name) for name in ("a.png", "no.png", "a.png")]], strict=True)
    )

    def encoded():
        report = lambda *given: said.append(given)  # noqa: E731
        return encode_new(encoders, "image", cells, store, batch_size=2, engine=engine, progress=report)

    bad = encoded()
    assert {key: error.kind for key, error in bad.items()} == {KEYS[2]: "file not found"}
    assert said == [(1, 4, "encode image"), (3, 4, "encode image"), (4, 4, "encode image")]
    expected, _ = encoders.encode([{"image": str(tmp_path / "a.png")}])
    np.testing.assert_array_equal(store.get([KEYS[0]]), np.zeros((1, 24)))
    np.testing.assert_array_equal(store.get([KEYS[1], KEYS[3]]), np.repeat(expected["image"], 2, axis=0))
    assert list(encoded()) == [KEYS[2]]  # what could not be decoded is tried again
    texts = VectorStore(tmp_path / "store", "text", 32)
    assert encode_new(encoders, "text", {KEYS[0]: ["one", "two"], KEYS[1]: ["one"]}, texts, engine=engine) == {}
    np.testing.assert_array_equal(texts.get(KEYS[:2]), encoders.encode_texts("text", [["one", "two"], ["one"]]))
    assert encode_new(encoders, "text", {}, texts, progress=lambda *given: said.append("nothing to say")) == {}
    assert "nothing to say" not in said
