"""Features as a collection, and what changes with an item."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.datasets.emoji import thumbnail
from calmrl.errors import InputError
from calmrl.search.collection import ItemRecord, described, from_features
from calmrl.sources import Source, open_source


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
