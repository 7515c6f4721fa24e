"""What a change of an index says, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.data.media.problems import Problems
from calmrl.errors import InputError
from calmrl.search import update
from calmrl.search.collection import ItemRecord
from calmrl.search.update import Change, _check_clash, _differs, _fetch, _note_unknown, _Wanted


def test_lines_for_people():
    assert Change().lines() == ["0 added, 0 changed, 0 unchanged"]
    change = Change(["a", "b"], ["c"], ["d"], ["e", "f"], ["g"], 5, ["a problem"])
    assert change.lines() == [
        "a problem",
        "2 added, 1 changed, 5 unchanged, 1 removed",
        "1 item that was removed from the index stays out; `removed=True` adds it again, and so does naming one of its files",
        "2 items are gone from their source but still in the index; `prune=True` removes what is gone",
    ]


def test_items_of_one_file_or_all_but_the_removed():
    items = [ItemRecord("a", paths={"image": "a.png"}), ItemRecord("b"), ItemRecord("sub/c", paths={"text": "x.txt"})]
    for wanted, ids in (
        (_Wanted(None, {"b"}), ["a", "sub/c"]),
        (_Wanted("a.png", set()), ["a"]),
        (_Wanted("b.png", {"b"}), ["b"]),
        (_Wanted("sub/c.png", set()), ["sub/c"]),
        (_Wanted("x.txt", set()), ["sub/c"]),
    ):
        assert [item.id for item in items if wanted(item)] == ids


def test_an_item_that_differs():
    item = ItemRecord("a", fingerprints={"image": ["key", 1, 2]})
    same = {"fingerprint": item.digest(), "fingerprints": {"image": ["key", 1, 2]}}
    assert not _differs(item, same)
    assert _differs(item, None)
    assert _differs(item, same | {"fingerprints": {"image": ["key", 1, 3]}})  # only its time, which is to be kept
    assert _differs(item, same | {"fingerprint": "other"})


def test_ids_of_another_source_are_named():
    known = [ItemRecord(str(i)) for i in range(5)]
    rows = {str(i): {"root": "here" if i == 0 else "there"} for i in range(5)}
    with pytest.raises(
        InputError, match=r"4 ids are in the index already, from there \(first: '1', '2', '3'\); rename"
    ):
        _check_clash(known, rows, SimpleNamespace(root="here"))
    _check_clash(known[:1], rows, SimpleNamespace(root="here"))


@pytest.mark.parametrize(("unknown", "named"), [("abc", "'a', 'b', 'c' in"), ("abcd", "'a', 'b', 'c' and 1 more in")])
def test_unknown_ids_are_named(unknown, named):
    index = SimpleNamespace(path="ix", refresh=lambda: None, rows=lambda columns, where: [{"id": "x"}])
    with pytest.raises(InputError, match=f"no item {named} ix; nothing was removed"):
        update.remove(index, ["x", *unknown])
    assert update.remove(index, []) == 0


def test_vectors_are_found_by_their_content():
    rows = {
        "a": {"fingerprints": {"image": ["k1", 0, 0]}},
        "b": {"fingerprints": {"image": ["k2", 0, 0], "text": ["k1", 0, 0]}},
        "c": {"fingerprints": {"text": ["k3", 0, 0]}},
    }
    asked = []

    def held(columns, where):
        asked.append((columns, where))
        return [{"id": "a", "f_1": [1.0, 2.0]}, {"id": "b", "f_1": None}]

    index = SimpleNamespace(layout={"modalities": {"text": {}, "image": {}}}, rows=held)
    found = _fetch(index, rows, "image", ["k1", "k2", "k9"])
    assert {key: value.tolist() for key, value in found.items()} == {"k1": [1.0, 2.0]}
    assert found["k1"].dtype == np.float32
    assert asked == [(["id", "f_1"], "id IN ('a', 'b')")]
    assert _fetch(index, rows, "image", ["k9"]) == {}
    assert len(asked) == 1


def test_files_of_a_kind_that_the_index_lacks():
    items = [SimpleNamespace(cells={"video": 1, "image": 2}), SimpleNamespace(cells={"video": 1})]
    manifest = SimpleNamespace(kinds={"video": "image", "image": "image", "sound": "audio"}, items=items)
    opened = SimpleNamespace(manifest=manifest, problems=Problems())
    _note_unknown(SimpleNamespace(layout={"modalities": {"image": {}, "text": {}}}), opened)
    (problem,) = opened.problems
    assert (problem.kind, problem.scope) == ("video is not in the index", "file")
    assert problem.detail == "2 files; the index has image, text: make it again to include them"


class Table:
    def __init__(self):
        self.calls = []

    def delete(self, where):
        self.calls.append(("delete", where))

    def merge_insert(self, column):
        self.calls.append(("merge", column))
        return self

    def __getattr__(self, name):
        return lambda *given, **named: self.calls.append((name, *given[:1])) or self


@pytest.mark.parametrize("search", [None, {"index": "graph"}])
def test_one_commit_per_change(search, monkeypatch):
    tidied, refreshed = [], []
    monkeypatch.setattr(update.store, "tidy", lambda table, always: tidied.append(always))
    index = SimpleNamespace(table=Table(), layout={"search": search}, refresh=lambda: refreshed.append(1))
    update._commit(index, None, [])
    assert index.table.calls == []
    update._commit(index, [], ["a'b"])
    assert index.table.calls == [("delete", "id IN ('a''b')")]
    assert tidied == [search is not None] * 2
    assert len(refreshed) == 2
