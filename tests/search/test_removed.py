"""Items that were removed on purpose are remembered, and forgotten when they come back."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl.search.update import clear_removed, record_removed, removed_items


def row(root, id, **paths):
    return {"root": root, "id": id, "paths": json.dumps(paths), "more": 1}


def test_remembering_and_clear_removedting(tmp_path):
    assert removed_items(tmp_path) == {}
    clear_removed(tmp_path, "r", ["a"])  # nothing to clear_removed
    record_removed(tmp_path, [row("r", "a'b", image="a.png", text="a.txt"), row("r", "c")])
    record_removed(tmp_path, [row("s", "c", image="c.png"), row("r", "c", image="new.png")])
    assert removed_items(tmp_path) == {"r": {"a'b": ["a.png", "a.txt"], "c": ["new.png"]}, "s": {"c": ["c.png"]}}
    clear_removed(tmp_path, "r", [])
    assert len(removed_items(tmp_path)["r"]) == 2
    clear_removed(tmp_path, "r", ["a'b", "c"])
    assert removed_items(tmp_path) == {"s": {"c": ["c.png"]}}
