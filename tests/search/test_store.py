"""Rows of the table: columns by what they hold, lists with holes, and when pieces are joined."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl.errors import InputError
from calmrl.search import store
from calmrl.search.collection import Collection, ItemRecord
from calmrl.search.space import Places

RECORDS = [
    ItemRecord(
        "x", ("one", "two"), ("red", "big"), "train", {"b": "b.png"}, {"b": ["key", 5, 6]}, {"n": 1, "f": True, "t": 3}
    ),
    ItemRecord("y", columns={"n": 2.5, "f": None, "t": "z"}),
]
LAYOUT = {
    "modalities": {"a": {"width": 2}, "b": {"width": 3}},
    "columns": store.columns_of(RECORDS),
    "width": 2,
}


def test_what_columns_hold():
    assert store.columns_of(RECORDS) == {
        "n": {"column": "x_0", "holds": "number"},
        "f": {"column": "x_1", "holds": "flag"},
        "t": {"column": "x_2", "holds": "text"},
    }
    assert store.columns_of(
        [ItemRecord("a", columns={"empty": None, "mixed": True}), ItemRecord("b", columns={"mixed": 1})]
    ) == {
        "empty": {"column": "x_0", "holds": "text"},
        "mixed": {"column": "x_1", "holds": "text"},
    }


def test_items_as_rows():
    z = {"b": np.arange(6, dtype=np.float64).reshape(2, 3)}
    items = Collection(
        RECORDS, z, np.array([[True], [False]]), {"b": "image"}, "root", thumbnail=lambda row: b"%d" % row
    )
    places = Places(None, np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([0.5, 0.0]), np.array([0.25, 0.0]))
    rows = store.batch(items, LAYOUT, places.columns(LAYOUT)).to_pylist()
    assert "vector" not in store.batch(items, LAYOUT | {"width": 0}, places.columns(LAYOUT | {"width": 0})).schema.names
    assert rows[0] == {
        "id": "x", "text": "one\ntwo", "label": "red, big", "split": "train", "root": "root",
        "paths": '{"b": "b.png"}', "stamps": '{"b": ["key", 5, 6]}', "labels": ["red", "big"],
        "fingerprint": RECORDS[0].digest(), "certainty": 0.5, "nearness": 0.25, "thumbnail": b"0", "has_0": False,
        "has_1": True, "x_0": 1.0, "x_1": True, "x_2": "3", "f_0": None, "f_1": [0.0, 1.0, 2.0], "vector": [3.0, 4.0],
    }  # fmt: skip
    empty = {name: rows[1][name] for name in ("text", "label", "labels", "split", "f_0", "f_1", "vector", "x_1")}
    assert empty == dict.fromkeys(empty)
    assert (rows[1]["has_0"], rows[1]["has_1"], rows[1]["x_0"], rows[1]["thumbnail"]) == (False, False, 2.5, b"1")


@pytest.mark.parametrize(("pieces", "always", "joined"), [(32, False, False), (33, False, True), (1, True, True)])
def test_pieces_are_joined_once_there_are_many(pieces, always, joined):
    calls = []
    table = SimpleNamespace(
        stats=lambda: {"fragment_stats": {"num_fragments": pieces}}, optimize=lambda **given: calls.append(given)
    )
    if always:
        store.tidy(table, always=True)
    else:
        store.tidy(table)
    assert calls == ([{"cleanup_older_than": timedelta(days=1)}] if joined else [])


def test_layouts_of_other_versions():
    good = {"format": "calmrl.index", "version": 1}
    assert store.read_layout({"index.json": json.dumps(good).encode()}, "ix") == good
    assert store.read_layout({"index.json": b'{"format": "calmrl.index"}'}, "ix") == {"format": "calmrl.index"}
    for wrong in ({"format": "calmrl.index", "version": 4}, {"format": "other", "version": 1}):
        with pytest.raises(InputError, match=r"ix has format .*; this calmrl reads calmrl\.index up to 3"):
            store.read_layout({"index.json": json.dumps(wrong).encode()}, "ix")
    with pytest.raises(InputError, match="ix is a damaged index: its layout is a list; make it again"):
        store.read_layout({"index.json": b"[]"}, "ix")
    for parts in ({}, {"index.json": b"{"}):
        with pytest.raises(
            InputError, match=r"ix cannot be read as an index .*if it is damaged, copy or make it again"
        ):
            store.read_layout(parts, "ix")


def test_an_unfinished_index_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no index at .*; make one with calmrl index SOURCE --out .*/ix$"):
        store.open_tables(tmp_path / "ix")
    (tmp_path / "ix.part").mkdir()
    with pytest.raises(InputError, match=r"; ix\.part beside it is unfinished: run calmrl index again to finish it$"):
        store.open_tables(tmp_path / "ix")


@pytest.mark.parametrize("missing", ["items", "parts"])
def test_a_database_that_lacks_a_table_is_no_index(missing, tmp_path):
    database = store.connect(tmp_path)
    database.create_table("items" if missing == "parts" else "parts", pa.table({"name": ["a"]}))
    with pytest.raises(InputError, match="is not a calmrl index; make one"):
        store.open_tables(tmp_path)
