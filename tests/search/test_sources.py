"""What a source is taken for, and features as a collection."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.errors import InputError
from calmrl.search import collection as sources
from calmrl.search.collection import (
    ItemRecord,
    OpenSource,
    _check_values,
    _groups,
    _holds_vectors,
    _kind,
    _texts,
    described,
    from_features,
    guess_kinds,
    open_source,
)


def test_sources_in_memory():
    features = FeatureSet({"a": np.ones((2, 3))}, name="mine")
    opened = open_source(features)
    assert (opened.type, opened.root, opened.features) == ("features", "mine", features)
    assert opened.modalities == ("a",)
    assert open_source(opened) is opened
    opened = open_source({"a": np.ones((2, 3))})
    assert (opened.type, opened.root) == ("features", "features")
    assert OpenSource("folder", "x").modalities == ()
    with pytest.raises(InputError, match=r"nowhere is neither a file or folder nor a bundled data set \(.*emoji"):
        open_source("nowhere")


def test_files_of_features_and_of_items(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    np.savez(tmp_path / "f.npz", a=np.ones((2, 3)))
    assert open_source(tmp_path / "f.npz").type == "features"
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": "1", "photo": "a.png", "text": "words"}) + "\n")
    opened = open_source(tmp_path / "items.jsonl")
    assert (opened.type, opened.root) == ("manifest", str(tmp_path))
    assert opened.modalities == ("photo", "text")
    kinds = {"photo": "image", "hum": "audio"}
    assert open_source(tmp_path / "items.jsonl", kinds, some=True).modalities == ("photo",)
    with pytest.raises(InputError):
        open_source(tmp_path / "items.jsonl", kinds)
    (tmp_path / "a.doc").touch()
    with pytest.raises(InputError, match=r"has suffix '\.doc'; an index is made from a folder"):
        open_source(tmp_path / "a.doc")


@pytest.mark.parametrize(
    ("kind", "vectors"),
    [
        (pa.list_(pa.float32()), True), (pa.large_list(pa.float64()), True), (pa.list_(pa.float32(), 2), True),
        (pa.list_(pa.string()), False), (pa.float32(), False),
    ],
)  # fmt: skip
def test_tables_with_lists_of_numbers_are_features(kind, vectors, tmp_path):
    pq.write_table(pa.table({"id": pa.array(["a"]), "x": pa.array([None], kind)}), tmp_path / "t.parquet")
    assert _holds_vectors(tmp_path / "t.parquet") is vectors


def test_kinds_are_guessed_from_values(tmp_path):
    rows = [
        {
            "id": "x.png",
            "split": "a.png",
            "labels": "a.png",
            "meta.file": "a.png",
            "photo": "",
            "note": "words",
            "n": 3,
        },
        {"id": "y", "photo": "a.PNG", "film": "a.mp4", "hum": "a.wav", "text": 5, "note": "b.zip"},
        {"id": "z", "photo": "later.wav"},
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert guess_kinds(tmp_path / "items.jsonl") == {"photo": "image", "film": "image", "hum": "audio", "text": "text"}
    (tmp_path / "none.jsonl").write_text('{"id": "x", "note": "words"}\n')
    with pytest.raises(InputError, match="has no column of files and no column text; name encoders: `encoders="):
        guess_kinds(tmp_path / "none.jsonl")


def test_bundled_data_sets_are_opened_as_the_encoders_gave_them(monkeypatch):
    asked = []
    monkeypatch.setattr(sources, "load_dataset", lambda name, **options: asked.append((name, options)))
    assert open_source("stamps").type == "dataset"
    assert asked == [("stamps", {"standardize": False})]


def features(**more) -> FeatureSet:
    meta = meta_table(2, ids=["a", "b"], split=["train", None], labels=["x", "y"], text=["s", "t"], columns=more)
    return FeatureSet({"p": np.eye(2, 3), "q": np.array([[1.0], [np.nan]])}, None, meta)


def test_features_as_a_collection():
    items = from_features(features(size=[1, 2], group=["g", "h"], thumbnail=[b"1", None]), "here")
    assert items.kinds == {"p": "vector", "q": "vector"}
    assert items.groups == ["g", "h"]
    assert items.present.tolist() == [[True, True], [True, False]]
    first, second = items.known
    assert (first.id, first.texts, first.labels, first.split) == ("a", ("s",), ("x",), "train")
    assert second.split is None
    assert first.columns == {"size": 1, "group": "g"}
    assert list(second.stamps) == ["p"]
    assert second.stamps["p"][1:] == [0, 0]
    assert first.stamps["p"][0] != second.stamps["p"][0]
    assert (items.thumbnail(0), items.thumbnail(1)) == (b"1", None)
    one = items.take([1])
    assert ([item.id for item in one.known], one.groups, one.thumbnail(0), len(one)) == (["b"], ["h"], None, 1)
    assert one.z["p"].tolist() == [[0, 1, 0]]


def test_groups_are_a_column_or_the_one_of_that_name():
    assert _groups(features(size=[1, 2]), None) is None
    assert _groups(features(size=[1, 2], group=[3, 4]), "size") == [1, 2]
    assert _groups(features(group=[3, 4]), None) == [3, 4]
    assert from_features(features(), "x").thumbnail(0) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_values_that_float32_cannot_hold_are_named(bad):
    values = np.ones((9000, 2))
    values[8999, 1] = bad
    present = np.ones((9000, 1), bool)
    present[0] = False
    with pytest.raises(
        InputError, match="p: row 8999 is marked as present but has NaN or values too large for float32"
    ):
        _check_values({"p": values}, present)
    present[8999] = False
    _check_values({"p": values}, present)
    _check_values({"p": values}, np.zeros((9000, 1), bool))


def test_texts_kinds_and_descriptions():
    assert [_texts(value) for value in (None, "a", 3, ["a", None, 2], ("b",))] == [
        (),
        ("a",),
        ("3",),
        ("a", "2"),
        ("b",),
    ]
    assert [_kind(name) for name in (None, "minilm", "minilm@main", "unknown")] == ["vector", "text", "text", "vector"]
    made = features()
    for info, found in (({}, None), ({"encoding": "x"}, None), ({"encoding": {"encoders": {"p": 1}}}, None)):
        made.info = info
        assert described(made) is found
    made.info = {"encoding": {"encoders": {"p": 1, "q": 2}}, "encoders": {"p": "minilm", "q": 3, "z": "yamnet"}}
    assert described(made) == made.info["encoding"]
    items = from_features(made, "x")
    assert (items.encoders, items.kinds) == ({"p": "minilm"}, {"p": "text", "q": "vector"})


def test_a_fingerprint_changes_with_everything_but_times():
    one = ItemRecord("a", ("t",), ("l",), "s", {"p": "f"}, {"p": ["key", 1, 2]}, {"c": 1})
    assert (
        one.fingerprint()
        == ItemRecord("a", ("t",), ("l",), "s", {"p": "f"}, {"p": ["key", 3, 4]}, {"c": 1}).fingerprint()
    )
    others = [
        ItemRecord("b", ("t",), ("l",), "s", {"p": "f"}, {"p": ["key", 1, 2]}, {"c": 1}),
        ItemRecord("a", ("u",), ("l",), "s", {"p": "f"}, {"p": ["key", 1, 2]}, {"c": 1}),
        ItemRecord("a", ("t",), ("m",), "s", {"p": "f"}, {"p": ["key", 1, 2]}, {"c": 1}),
        ItemRecord("a", ("t",), ("l",), "s", {"p": "f"}, {"p": ["yek", 1, 2]}, {"c": 1}),
        ItemRecord("a", ("t",), ("l",), "s", {"p": "f"}, {"p": ["key", 1, 2]}, {"c": 2}),
    ]
    assert len({item.fingerprint() for item in (one, *others)}) == 6
    assert (
        ItemRecord("a", columns={"x": 1, "y": 2}).fingerprint()
        == ItemRecord("a", columns={"y": 2, "x": 1}).fingerprint()
    )
