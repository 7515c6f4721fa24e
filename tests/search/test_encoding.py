"""What is known about the files of items, and which of them are encoded."""

from __future__ import annotations

import hashlib
import io
import os
from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.data.media.manifest import Item
from calmrl.data.media.problems import Problems, Unreadable
from calmrl.search import encoding
from calmrl.search.collection import Collection, ItemRecord, OpenSource
from calmrl.search.encoding import (
    Memory,
    _batches,
    _encode_cells,
    _mark_unreadable,
    _recall,
    _relative,
    _slow,
    _stamp,
    _store_name,
    _thumbnail,
    _without_empty,
    file_sha256,
    survey,
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"content")
    os.utime(path, ns=(5, 1234))
    return path


KEY = hashlib.sha256(b"content").hexdigest()


def test_a_file_with_the_same_size_and_time_is_not_read_again(file, tmp_path):
    assert _stamp(file, None, None) == [KEY, 7, 1234]
    assert _stamp(file, None, ["before", 7, 1234]) == ["before", 7, 1234]
    assert _stamp(file, None, ["before", 8, 1234]) == [KEY, 7, 1234]
    assert _stamp(file, None, ["before", 7, 1235]) == [KEY, 7, 1234]
    assert _stamp(file, "of the text", ["before", 7, 1234]) == ["of the text", 7, 1234]
    assert _stamp(None, "of the text", None) == ["of the text", 0, 0]
    assert _stamp(tmp_path / "nowhere", None, None) == ["unreadable:gone", -1, -1]


def test_both_ways_of_hashing_agree(file):
    assert file_sha256(file) == KEY
    many = bytes(range(256)) * 9000  # more than one block
    assert _slow(io.BytesIO(many)) == hashlib.sha256(many).hexdigest()


def test_paths_are_relative_to_the_folder(tmp_path):
    assert _relative(tmp_path / "x" / ".." / "a.png", tmp_path) == "a.png"
    assert _relative(tmp_path.parent / "a.png", tmp_path) == str(tmp_path.parent / "a.png")


def test_what_is_known_about_items(file, tmp_path):
    (tmp_path / "a.txt").write_text("words")
    columns = {"labels": ["x", None, 3], "text": ["words"], "split": "train", "meta.size": 5, "size": 6}
    one = Item(1, "a", {"image": str(file), "text": ["words", "more"]}, columns)
    two = Item(2, "b", {"text": ["alone"]}, {"labels": "y"})
    opened = OpenSource("folder", str(tmp_path), manifest=SimpleNamespace(items=[one, two]))
    first, second = survey(opened)
    assert first.labels == ("x", "3")
    assert (first.texts, first.split, first.columns) == (("words",), "train", {"size": 5})
    assert first.paths == {"image": "a.png", "text": "a.txt"}
    assert first.stamps["image"] == [KEY, 7, 1234]
    assert first.stamps["text"][:2] == [hashlib.sha256(b"words\0more").hexdigest(), 5]
    assert (second.labels, second.texts, second.paths) == (("y",), (), {})
    assert second.stamps == {"text": [hashlib.sha256(b"alone").hexdigest(), 0, 0]}
    again, _ = survey(opened, Memory({"a": {"image": ["kept", 7, 1234]}}))
    assert again.stamps["image"][0] == "kept"
    opened.type = "manifest"  # there a text has no file of its own
    assert survey(opened)[0].paths == {"image": "a.png"}


class Vectors(dict):
    def add(self, keys, values):
        self.update(zip(keys, values.tolist(), strict=True))


def test_what_the_index_has_is_not_encoded_again():
    asked = []

    def fetch(name, keys):
        asked.append((name, keys))
        return {"x": np.array([1.0])} if "x" in keys else {}

    vectors, todo = Vectors(), {"x": 1, "y": 2}
    _recall(vectors, "image", todo, Memory(fetch=fetch))
    assert asked == [("image", ["x", "y"])]
    assert (vectors, todo) == ({"x": [1.0]}, {"y": 2})
    _recall(vectors, "image", todo, Memory(fetch=fetch))
    assert todo == {"y": 2}
    for memory, left in ((None, todo), (Memory(), todo), (Memory(fetch=fetch), {})):
        _recall(vectors, "image", left, memory)
    assert len(asked) == 2


def test_batches_are_kept_and_what_cannot_be_decoded_is_said(monkeypatch):
    bad = Unreadable("image", "it is damaged")

    class Encoders:
        def kind(self, name):
            return "image"

        def encode_files(self, name, cells, batch_size):
            assert batch_size == 16
            yield 0, [np.array([1.0]), bad]
            yield 2, [bad]
            yield 3, [np.array([4.0])]

    said, vectors = [], Vectors()
    todo = dict.fromkeys("abcd", "cell")
    found = _encode_cells(Encoders(), "image", todo, vectors, lambda *told: said.append(told), None)
    assert vectors == {"a": [1.0], "d": [4.0]}
    assert found == dict.fromkeys("bc", f"{bad.kind}: {bad.detail}")
    assert said == [("encode image", 2, 4), ("encode image", 3, 4), ("encode image", 4, 4)]
    assert _encode_cells(Encoders(), "image", todo, vectors, None, None) == found


def test_where_batches_come_from(monkeypatch):
    engine = object()
    texts = SimpleNamespace(kind=lambda name: "text")
    files = SimpleNamespace(kind=lambda name: "image", encode_files=lambda name, cells, batch_size: "here")
    monkeypatch.setattr(encoding, "encode_files_distributed", lambda *given: given)
    monkeypatch.setattr(
        encoding, "encode_texts_distributed", lambda *given: [(0, (type(given[0]).__name__, given[-1]))]
    )
    assert _batches(files, "a", [], None) == "here"
    assert _batches(files, "a", ["x"], engine) == (engine, files, "a", ["x"], 16)
    assert list(_batches(texts, "a", [], None)) == [(0, ["LocalEngine", 16])]
    assert list(_batches(texts, "a", [], engine)) == [(0, ["object", 16])]


def test_what_cannot_be_read_is_marked_until_it_changes():
    opened = OpenSource("folder", "root")
    items = [
        ItemRecord(name, stamps={"image": [key, 5, 6]})
        for name, key in zip("abc", ("bad", "good", "unreadable:bad"), strict=True)
    ]
    for item in items:
        _mark_unreadable(item, "image", {"bad": "image: damaged"}, opened)
    assert [item.stamps["image"] for item in items] == [
        ["unreadable:bad", 5, 6],
        ["good", 5, 6],
        ["unreadable:bad", 5, 6],
    ]
    assert [(problem.id, problem.detail) for problem in opened.problems] == [
        ("a", "image: damaged"),
        ("c", "could not be read before, and has not changed since"),
    ]


def test_items_of_which_nothing_is_left_are_left_out():
    present = np.array([[True], [False], [True]])
    problems = Problems()
    items = Collection(
        [ItemRecord(name) for name in "abc"], {"x": np.ones((3, 1))}, present, {}, "root", problems=problems
    )
    kept = _without_empty(items)
    assert [item.id for item in kept.known] == ["a", "c"]
    assert [(problem.kind, problem.scope, problem.id) for problem in problems] == [("no modality at all", "row", "b")]
    items.present[:] = True
    assert _without_empty(items) is items
    assert len(problems) == 1


def test_the_picture_of_an_item(monkeypatch):
    monkeypatch.setattr(encoding, "thumbnail", lambda path: str(path))
    kinds = {"image": "image", "photo": "image", "video": "image", "sound": "audio", "text": "text"}
    opened = OpenSource("folder", "root", manifest=SimpleNamespace(kinds=kinds))
    for paths, shown in (
        ({"photo": "p", "video": "v", "image": "i"}, "root/i"),
        ({"photo": "p", "video": "v"}, "root/v"),
        ({"sound": "s", "photo": "p"}, "root/p"),
        ({"sound": "s", "text": "t"}, None),
    ):
        assert _thumbnail(ItemRecord("a", paths=paths), opened) == shown


def test_vectors_of_another_encoder_are_kept_apart():
    names = {_store_name(*pair) for pair in (("a", "b"), ("a", "c"), ("b", "b"))}
    assert len(names) == 3
    assert {len(name) for name in names} == {16}
