"""Vectors by content: what was written is found again, and what was cut off is as if it were not there."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest

from calmrl._support.engine import LocalEngine
from calmrl.encoders import EncoderSet
from calmrl.encoders.vector_store import VectorStore, encode_new, file_key, open_stores, remove_stores, text_key
from calmrl.errors import InputError
from tests.support.tiny_encoders import tiny  # noqa: F401

KEYS = [text_key(str(i)) for i in range(5)]
VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def test_kept_and_found_again(tmp_path) -> None:
    store = VectorStore(tmp_path / "new" / "er", "image", 3)
    assert len(store) == 0
    store.add(KEYS[:2], VECTORS[:2].astype(np.float64))
    store.add(KEYS[2:], VECTORS[2:])
    again = VectorStore(tmp_path / "new" / "er", "image", 3)
    assert (len(store), len(again)) == (5, 5)
    for one in (store, again):
        np.testing.assert_array_equal(one.get(KEYS[::-1]), VECTORS[::-1])
    assert again.get([]).shape == (0, 3)
    assert again.get(KEYS).dtype == again.get([]).dtype == np.float32
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


def test_what_is_added_has_reached_the_disk_before_its_key(tmp_path, monkeypatch) -> None:
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda number: sizes.append(os.fstat(number).st_size))
    store = VectorStore(tmp_path, "image", 3)
    store.add(KEYS[:2], VECTORS[:2])
    store.add(KEYS[2:3], VECTORS[2:3])
    assert sizes == [24, 130, 36, 195]  # rows of 12 bytes, then keys of 65


@pytest.mark.parametrize("text", ["é", "no/such/file", "a\0b"])
def test_the_key_of_a_text_or_of_a_file_that_is_not_there(text) -> None:
    assert text_key(text) == file_key(text) == hashlib.sha256(text.encode()).hexdigest()


def test_the_key_of_a_file_changes_with_its_size_and_time(tmp_path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"abc")
    os.utime(file, ns=(5, 7))
    assert file_key(str(file)) == hashlib.sha256(f"{file}\0003\0007".encode()).hexdigest()


@pytest.mark.usefixtures("tiny")
def test_stores_belong_to_their_encoders(tmp_path):
    folder, encoders = tmp_path / "a" / "b", EncoderSet({"text": "tiny_text"}, frames=3)
    stores, description = open_stores(folder, encoders)
    assert list(stores) == ["text"]
    assert stores["text"].width == 32
    assert description == encoders.describe()
    assert open_stores(folder, encoders)[1] == description
    header = folder / "encoders.json"
    written = header.read_text()
    first = str(description["encoders"]["text"]["signature"][0])
    header.write_text(written.replace(first, str(float(first) + 0.01), 1))  # another machine
    assert open_stores(folder, encoders)[1]["encoders"]["text"]["signature"][0] == pytest.approx(float(first) + 0.01)
    for old, new in (
        (first, str(float(first) + 0.9)),
        ('"frames": 3', '"frames": 4'),
        ('"kind": "text"', '"kind": "x"'),
    ):
        assert old in written
        header.write_text(written.replace(old, new, 1))
        with pytest.raises(
            InputError, match="holds vectors of a run that was begun with other encoders, frames or dtype"
        ):
            open_stores(folder, encoders)
    remove_stores(folder)
    assert not folder.exists()
    remove_stores(folder)  # again


def test_the_mean_of_several_vectors(tmp_path) -> None:
    store = VectorStore(tmp_path, "image", 3)
    store.add(KEYS, VECTORS)
    groups = [KEYS[:1], KEYS[1:4]]
    np.testing.assert_allclose(store.means(groups), [VECTORS[0], VECTORS[1:4].mean(axis=0)], rtol=1e-6)
    np.testing.assert_array_equal(store.means([[key] for key in KEYS]), VECTORS)
    assert store.means([]).shape == (0, 3)
