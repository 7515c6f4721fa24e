"""Folders that changed since they were indexed, by names, sizes and times."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from calmrl.search import update as growth_module
from calmrl.search.update import FolderChanges, folder_changes


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.txt", "notes.xyz", ".hidden.png", "sub/c.png", ".git/d.png"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("xy")
        os.utime(file, ns=(0, 77))
    (tmp_path / "broken.png").symlink_to("nowhere")
    return tmp_path


def index_of(monkeypatch, rows, kind="folder", removed=None):
    monkeypatch.setattr(growth_module, "removed_items", lambda path: removed or {})
    listed = [{"root": str(root), "paths": json.dumps(p), "stamps": json.dumps(s)} for root, p, s in rows]
    return SimpleNamespace(layout={"source": {"type": kind}}, path="ix", rows=lambda columns: listed)


def stamps(**times):
    return {name: ["key", 2, time] for name, time in times.items()}


def test_a_folder_as_it_was(folder, monkeypatch):
    rows = [
        (folder, {"image": "a.png", "text": "b.txt"}, stamps(image=77, text=77)),
        (folder, {"image": "sub/c.png"}, stamps(image=77)),
    ]
    assert folder_changes(index_of(monkeypatch, rows)) == FolderChanges()
    assert not folder_changes(index_of(monkeypatch, rows))
    gone = folder_changes(index_of(monkeypatch, [*rows, (folder, {"image": "z.png"}, stamps(image=1))]))
    assert gone == FolderChanges(gone=(f"{folder}/z.png",), folders=(str(folder),))


def test_new_and_changed_files(folder, monkeypatch):
    rows = [(folder, {"image": "a.png", "text": "b.txt"}, stamps(image=78))]  # the text has no stamp: it is not known
    found = folder_changes(index_of(monkeypatch, rows))
    assert found == FolderChanges((f"{folder}/b.txt", f"{folder}/sub/c.png"), (f"{folder}/a.png",), (), (str(folder),))
    assert found
    removed = {str(folder): {"c": ["sub/c.png"], "b": ["b.txt", "a.png"]}}
    found = folder_changes(index_of(monkeypatch, rows, removed=removed))
    assert found == FolderChanges(changed=(f"{folder}/a.png",), folders=(str(folder),))
    bigger = [(folder, {"image": "a.png"}, {"image": ["key", 3, 77]})]
    assert folder_changes(index_of(monkeypatch, bigger, removed=removed)).changed == (f"{folder}/a.png",)


def test_where_nothing_is_compared(folder, monkeypatch, tmp_path):
    rows = [(folder, {"image": "z.png"}, stamps(image=1))]
    assert folder_changes(index_of(monkeypatch, rows, kind="manifest")) == FolderChanges()
    assert (
        folder_changes(index_of(monkeypatch, [(tmp_path / "gone", {"image": "a.png"}, stamps(image=1))]))
        == FolderChanges()
    )
    assert folder_changes(index_of(monkeypatch, [(folder, {}, {})])) == FolderChanges()


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            FolderChanges(("a", "b"), ("c",), (), ("photos",)),
            "files since the index was made: 2 not in the index (new, or of no use when it was made), 1 changed; bring it up "
            "to date with: calmrl add ix photos",
        ),
        (
            FolderChanges(gone=("a",), folders=("photos", "more")),
            "files since the index was made: 1 gone; bring it up to date with: calmrl add ix photos --prune",
        ),
    ],
)
def test_a_sentence_for_people(found, sentence):
    assert found.sentence("ix") == sentence
