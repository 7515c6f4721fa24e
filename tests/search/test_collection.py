"""Features as a collection, and what changes with an item."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.data.media.manifest import Item, Manifest
from calmrl.datasets.emoji import thumbnail
from calmrl.encoders import EncoderSet
from calmrl.errors import InputError
from calmrl.search.collection import ItemRecord, described, encode, from_features, records_of
from calmrl.sources import Source, open_source
from tests.support.tiny_encoders import tiny  # noqa: F401

Image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")


def features(**more) -> FeatureSet:
    meta = meta_table(2, ids=["a", "b"], split=["train", None], labels=["x", "y"], text=["s", "t"], columns=more)
    return FeatureSet({"p": np.eye(2, 3), "q": np.array([[1.0], [np.nan]])}, None, meta)


def test_features_as_a_collection():
    items = from_features(open_source(features(size=[1, 2], group=["g", "h"], thumbnail=[b"1", None])))
    assert items.kinds == {"p": "vector", "q": "vector"}
    assert items.groups == ["g", "h"]
    assert items.present.tolist() == [[True, True], [True, False]]
    first, second = items.records
    assert (first.id, first.texts, first.labels, first.split) == ("a", ("s",), ("x",), "train")
    assert second.split is None
    assert first.columns == {"size": 1, "group": "g"}
    assert list(second.fingerprints) == ["p"]
    assert second.fingerprints["p"][1:] == [0, 0]
    assert first.fingerprints["p"][0] != second.fingerprints["p"][0]
    assert (items.thumbnail(0), items.thumbnail(1)) == (b"1", None)
    one = items.take([1])
    assert ([item.id for item in one.records], one.groups, one.thumbnail(0), len(one)) == (["b"], ["h"], None, 1)
    assert one.z["p"].tolist() == [[0, 1, 0]]


def test_groups_are_a_column_or_the_one_of_that_name():
    assert from_features(open_source(features(size=[1, 2]))).groups is None
    assert from_features(open_source(features(size=[1, 2], group=[3, 4])), "size").groups == [1, 2]
    assert from_features(open_source(features(group=[3, 4]))).groups == [3, 4]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_values_that_float32_cannot_hold_are_named(bad):
    values = np.ones((9000, 2))
    values[8999, 1] = bad
    present = np.ones((9000, 2), bool)
    present[0, 0] = False
    z = {"p": values, "q": np.ones((9000, 1))}
    opened = Source("features", "x", FeatureSet(z, present))
    opened.features.z["p"] = values
    with pytest.raises(
        InputError, match="p: row 8999 is marked as present but has NaN or values too large for float32"
    ):
        from_features(opened)
    present[8999, 0] = False
    assert len(from_features(Source("features", "x", FeatureSet(z, present)))) == 9000


@pytest.mark.parametrize(("value", "texts"), [(None, ()), ("a", ("a",)), (3, ("3",)), (["a", None, "2"], ("a", "2"))])
def test_texts_of_an_item(value, texts):
    meta = meta_table(1, ids=["a"], text=[value])
    assert from_features(open_source(FeatureSet({"p": np.ones((1, 2))}, None, meta))).records[0].texts == texts


@pytest.mark.parametrize(
    ("info", "encoders", "kind"),
    [
        ({}, {}, "vector"),
        ({"encoders": {"p": "minilm"}}, {"p": "minilm"}, "text"),
        ({"encoders": {"p": "minilm@main", "z": "yamnet"}}, {"p": "minilm@main"}, "text"),
        ({"encoders": {"p": "unknown"}}, {"p": "unknown"}, "vector"),
        ({"encoders": {"p": 3}}, {}, "vector"),
    ],
)
def test_encoders_that_features_name(info, encoders, kind):
    made = features()
    made.info = info
    items = from_features(open_source(made))
    assert (items.encoders, items.kinds["p"]) == (encoders, kind)


@pytest.mark.parametrize("encoding", [None, "x", {"encoders": {"p": 1}}, {"encoders": {"p": 1, "q": 2}}])
def test_a_description_counts_if_it_covers_all_modalities(encoding):
    made = features()
    made.info = {} if encoding is None else {"encoding": encoding}
    covers = isinstance(encoding, dict) and len(encoding["encoders"]) == 2
    assert described(made) == (encoding if covers else None)


def test_a_bundled_data_set_brings_its_encoders_and_pictures():
    z = {name: np.ones((3, 1)) for name in ("drawing", "image", "text", "french")}
    present = np.array([[True, True, True, True], [True, False, True, True], [False, False, True, True]])
    data = FeatureSet(z, present, meta_table(3, ids=["dog-face", "cat-face", "lion"]))
    items = from_features(Source("dataset", "emoji", data))
    assert items.encoders == {"image": "efficientnet_lite0", "drawing": "efficientnet_lite0", "text": "minilm"}
    assert items.kinds == {"drawing": "image", "image": "image", "text": "text", "french": "vector"}
    shown = [items.thumbnail(row) for row in range(3)]
    assert shown == [thumbnail("dog-face", "image"), thumbnail("cat-face", "drawing"), None]
    for other in (Source("dataset", "stamps", data), Source("folder", "emoji", data)):
        assert [from_features(other).thumbnail(row) for row in range(3)] == [None] * 3


def test_a_digest_changes_with_everything_but_times():
    one = ItemRecord("a", ("t",), ("l",), "s", {"p": "f"}, {"p": ["key", 1, 2]}, {"c": 1, "d": 2})
    assert one.digest() == replace(one, fingerprints={"p": ["key", 3, 4]}).digest()
    assert one.digest() == replace(one, columns={"d": 2, "c": 1}).digest()
    changes = {
        "id": "b", "texts": ("u",), "labels": ("m",), "split": "t", "paths": {"p": "g"},
        "fingerprints": {"p": ["yek", 1, 2]}, "columns": {"c": 2, "d": 2},
    }  # fmt: skip
    others = {replace(one, **{name: value}).digest() for name, value in changes.items()}
    assert len(others | {one.digest()}) == 1 + len(changes)


pytestmark = pytest.mark.usefixtures("tiny")
KEY = hashlib.sha256(b"content").hexdigest()
KINDS = {"image": "image", "text": "text"}
NAMES = {"image": "tiny_image", "text": "tiny_text"}


def source(root: Path, *items: Item, form: str = "folder", kinds: dict[str, str] = KINDS) -> Source:
    return Source(form, str(root), manifest=Manifest(list(items), kinds))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"content")
    os.utime(path, ns=(5, 1234))
    return path


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({}, [KEY, 7, 1234]),
        ({"image": ["before", 7, 1234]}, ["before", 7, 1234]),  # the same size and time: not read again
        ({"image": ["before", 8, 1234]}, [KEY, 7, 1234]),
        ({"image": ["before", 7, 1235]}, [KEY, 7, 1234]),
    ],
)
def test_a_file_with_the_same_size_and_time_is_not_read_again(file, before, now):
    (record,) = records_of(source(file.parent, Item(1, "a", {"image": str(file)})), {"a": before})
    assert record.fingerprints == {"image": now}


def test_a_file_that_is_gone_and_one_outside_of_the_folder(file, tmp_path):
    root = tmp_path / "root"
    items = [Item(1, "a", {"image": str(root / "gone.png")}), Item(2, "b", {"image": str(file)})]
    items.append(Item(3, "c", {"image": str(root / "x" / ".." / "c.png")}))
    gone, outside, inside = records_of(source(root, *items))
    assert gone.fingerprints["image"] == ["unreadable:gone", -1, -1]
    assert outside.paths == {"image": str(file)}
    assert inside.paths == {"image": "c.png"}


def test_what_is_known_about_items(file, tmp_path):
    (tmp_path / "a.txt").write_text("words")
    columns = {"labels": ["x", None, 3], "text": ["words"], "split": "train", "meta.size": 5, "size": 6}
    one = Item(1, "a", {"image": str(file), "text": ["words", "more"]}, columns, (str(tmp_path / "a.txt"),))
    two = Item(2, "b", {"text": ["alone"]}, {"labels": "y"})
    first, second = records_of(source(tmp_path, one, two))
    assert first.labels == ("x", "3")
    assert (first.texts, first.split, first.columns) == (("words",), "train", {"size": 5})
    assert first.paths == {"image": "a.png", "text": "a.txt"}
    assert first.fingerprints["text"][:2] == [hashlib.sha256(b"words\0more").hexdigest(), 5]
    assert (second.labels, second.texts, second.paths) == (("y",), (), {})
    assert second.fingerprints == {"text": [hashlib.sha256(b"alone").hexdigest(), 0, 0]}
    in_table = records_of(source(tmp_path, replace(one, text_files=()), form="manifest"))[0]
    assert in_table.paths == {"image": "a.png"}  # there a text has no file of its own


@pytest.fixture
def items(tmp_path):
    """A picture with a text, the same picture, a damaged picture with a text, and a damaged picture alone."""
    Image.new("RGB", (20, 20), "red").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes())
    (tmp_path / "c.png").write_bytes(b"damaged")
    (tmp_path / "d.png").write_bytes(b"damaged, too")
    cells = {name: {"image": str(tmp_path / f"{name}.png")} for name in "abcd"}
    return [Item(0, name, cell | ({"text": [name]} if name in "ac" else {})) for name, cell in cells.items()]


def encoded(items, tmp_path, names=NAMES, said=None, **held):
    opened = source(tmp_path, *items)
    progress = None if said is None else lambda *given: said.append(given)
    return encode(opened, records_of(opened), EncoderSet(names), tmp_path / "cache", progress=progress, **held)


def test_items_of_which_something_can_be_read(items, tmp_path):
    found = encoded(items, tmp_path)
    assert [item.id for item in found.records] == ["a", "b", "c"]
    assert found.present.tolist() == [[True, True], [True, False], [False, True]]
    expected, _ = EncoderSet(NAMES, dtype="float32").encode([items[0].cells])
    np.testing.assert_array_equal(found.z["image"][:2], np.repeat(expected["image"], 2, axis=0))
    np.testing.assert_array_equal(found.z["text"][0], expected["text"][0])
    assert (found.kinds, found.encoders) == (KINDS, NAMES)
    reasons = [(problem.kind, problem.scope, problem.id) for problem in found.problems]
    assert reasons == [
        ("cannot be read", "cell", "c"),
        ("cannot be read", "cell", "d"),
        ("no modality at all", "row", "d"),
    ]
    assert found.records[2].fingerprints["image"][0].startswith("unreadable:")


def test_what_could_not_be_read_is_not_tried_before_it_changes(items, tmp_path):
    opened = source(tmp_path, items[2])
    before = {"c": encoded(items, tmp_path).records[2].fingerprints}
    said = []
    records = records_of(opened, before)
    found = encode(opened, records, EncoderSet(NAMES), tmp_path / "cache", progress=lambda *given: said.append(given))
    assert [what for _, _, what in said] == ["encode text"]
    assert [problem.detail for problem in found.problems] == ["could not be read before, and has not changed since"]


def test_content_is_encoded_once(items, tmp_path):
    said = []
    encoded(items[:2], tmp_path, said=said)
    assert said == [(0, 1, "encode image"), (1, 1, "encode image"), (0, 1, "encode text"), (1, 1, "encode text")]
    said.clear()
    encoded(items[:2], tmp_path, said=said)
    assert said == [(1, 1, "encode image"), (1, 1, "encode text")]  # all of it is in the cache
    said.clear()
    encoded(items[:2], tmp_path, {**NAMES, "image": "slow_image"}, said=said)
    assert said[:2] == [(0, 1, "encode image"), (1, 1, "encode image")]  # of another encoder


def test_what_the_index_has_is_not_encoded_again(items, tmp_path):
    asked, said = [], []
    held = np.arange(24, dtype=np.float32)

    def fetch(name, keys):
        asked.append((name, len(keys)))
        return {keys[0]: (held, None)} if name == "image" else {}

    found = encoded(items[:1], tmp_path, held=fetch, said=said)
    np.testing.assert_array_equal(found.z["image"][0], held)
    assert asked == [("image", 1), ("text", 1)]
    assert said == [(1, 1, "encode image"), (0, 1, "encode text"), (1, 1, "encode text")]
    encoded(items[:1], tmp_path, held=fetch)
    assert len(asked) == 2  # all of it is in the cache


@pytest.mark.parametrize(
    ("paths", "shown"),
    [
        ({"photo": "p", "video": "v", "image": "i"}, "i"),
        ({"photo": "p", "video": "v"}, "v"),
        ({"sound": "s", "photo": "p"}, "p"),
        ({"sound": "s"}, None),
    ],
)
def test_the_picture_of_an_item(paths, shown, tmp_path, monkeypatch):
    monkeypatch.setattr("calmrl.search.collection.thumbnail", str)
    kinds = {"image": "image", "photo": "image", "video": "image", "sound": "audio", "text": "text"}
    item = Item(0, "a", {name: str(tmp_path / path) for name, path in paths.items()} | {"text": ["words"]})
    opened = source(tmp_path, item, kinds=kinds)
    found = encode(opened, records_of(opened), EncoderSet({"text": "tiny_text"}), tmp_path / "cache")
    assert found.thumbnail(0) == (None if shown is None else str(tmp_path / shown))
