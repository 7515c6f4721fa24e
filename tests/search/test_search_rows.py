"""Rows as items, conditions as SQL, and files that stay inside of the collection."""

from __future__ import annotations

import json

import pytest

from calmrl.errors import InputError
from calmrl.search.hits import Hit, Item, Rows

LAYOUT = {
    "modalities": {"image": {}, "te xt": {}},
    "columns": {"size": {"column": "x_0", "holds": "number"}, "label": {"column": "x_1", "holds": "text"}},
}
ROW = {
    "id": "a", "text": "t", "label": "l", "certainty": 0.5, "paths": '{"image": "a.png"}', "has_0": True, "has_1": False,
    "split": "train", "root": "here", "x_0": 3.0, "x_1": "own",
}  # fmt: skip


def test_rows_as_hits_and_items():
    rows = Rows(LAYOUT)
    assert rows.hit(ROW, 0.25) == Hit("a", 0.25, 0.5, ("image",), "t", "l", {"image": "a.png"})
    item = rows.item(ROW)
    columns = {"size": 3.0, "label": "own"}
    assert item == Item("a", "t", "l", ("image",), {"image": "a.png"}, 0.5, "train", columns, "here")
    assert item.path == rows.hit(ROW, 0).path == "a.png"
    assert Hit("a", 0.0).path is None
    assert rows.of_hits == ["id", "text", "label", "paths", "certainty", "has_0", "has_1"]
    assert rows.of_items == [*rows.of_hits, "split", "root", "x_0", "x_1"]


def test_conditions():
    rows = Rows(LAYOUT)
    assert rows.conditions(None, None, None) == []
    assert rows.conditions("te xt", ["image"], "size = 1") == ["has_1", "NOT has_0", "coalesce(x_0 = 1.0, false)"]
    assert rows.conditions(["image", "te xt"], [], "") == ["has_0", "has_1"]
    assert rows.conditions(None, None, "label = 'a'") == ["coalesce(array_has(labels, 'a'), false)"]  # the labels' own
    assert rows.conditions(None, None, "certainty > 0.5") == ["(certainty > 0.5)"]
    with pytest.raises(InputError, match="unknown modality"):
        rows.conditions("smell", None, None)


def test_files_stay_inside(tmp_path):
    rows = Rows(LAYOUT)
    (tmp_path / "in").mkdir()
    for name in ("in/a.png", "out.png"):
        (tmp_path / name).touch()
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "out.png")

    def file(path, modality="image"):
        return rows.file({"root": str(tmp_path / "in"), "paths": json.dumps({"image": str(path)})}, "a", modality)

    assert file("a.png") == tmp_path / "in" / "a.png"
    assert file(tmp_path / "out.png") == tmp_path / "out.png"  # an absolute path was given by the source itself
    for path in ("../out.png", "link.png", "gone.png", tmp_path / "gone.png"):
        with pytest.raises(InputError, match="of item 'a' is no longer in"):
            file(path)
    with pytest.raises(InputError, match="item 'a' has no file of te xt; it has image"):
        file("a.png", "te xt")
    with pytest.raises(InputError, match="has no file of image; it has none"):
        rows.file({"root": "x", "paths": "{}"}, "a", "image")
