"""Adding and removing one item, with a stand-in for the index that keeps what it was given."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

import shapes as data
from calmrl.errors import InputError
from calmrl.server import Limits
from calmrl.server.additions import add, remove
from calmrl.server.uploads import Form

KINDS = {"photo": "image", "caption": "text", "sound": "audio"}


class Keeping:
    """Takes what is in the manifest, unless it is told to refuse it."""

    def __init__(self, path, problems=None) -> None:
        self.path, self.problems, self.rows, self.homes, self.removed = path, problems, {}, {}, []

    def add(self, manifest):
        (line,) = manifest.read_text(encoding="utf-8").splitlines()
        row = json.loads(line)
        if self.problems is not None:
            return SimpleNamespace(added=[], problems=self.problems)
        self.rows[row["id"]], self.homes[row["id"]] = row, manifest.parent
        return SimpleNamespace(added=[row["id"]], problems=[])

    def item(self, id):
        return SimpleNamespace(
            paths={name: self.rows[id][name] for name in ("photo", "sound") if name in self.rows[id]}
        )

    def file(self, id, modality):
        path = self.homes[id] / self.rows[id][modality]
        if not path.exists():
            raise InputError("gone")
        return path

    def remove(self, ids):
        self.removed += ids


def test_an_item_has_a_folder_of_its_own(tmp_path):
    index = Keeping(tmp_path)
    picture, sound = data.png("red", "bar"), data.tone(440)
    form = Form([("id", " a/b "), ("text", " words "), ("label", "red")], {"image": picture, "sound": sound})
    assert add(index, form, KINDS, Limits()) == "a/b"
    row = index.rows["a/b"]
    assert (row["labels"], row["text"], row["caption"]) == ("red", "words", "words")
    (folder,) = (tmp_path / "added").iterdir()
    assert (folder / row["photo"]).read_bytes() == picture
    assert (folder / row["sound"]).read_bytes() == sound
    assert sorted(file.name for file in folder.iterdir()) == sorted([row["photo"], row["sound"], "item.jsonl"])
    (folder / row["sound"]).unlink()  # one that is gone already
    remove(index, "a/b")
    assert index.removed == ["a/b"]
    assert list((tmp_path / "added").iterdir()) == []


def test_files_that_were_not_uploaded_stay(tmp_path):
    index = Keeping(tmp_path / "index")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.png").write_bytes(b"x")
    index.rows["a"], index.homes["a"] = {"photo": "a.png"}, tmp_path / "own"
    remove(index, "a")
    assert index.removed == ["a"]
    assert (tmp_path / "own" / "a.png").is_file()


def test_an_item_without_an_id_gets_one(tmp_path):
    index = Keeping(tmp_path)
    ids = {add(index, Form([("id", " "), ("text", "x")]), KINDS, Limits()) for _ in range(2)}
    assert len(ids) == 2
    assert all(len(id) == 32 and "labels" not in index.rows[id] for id in ids)
    only = add(index, Form(files={"image": data.png("red", "bar")}), KINDS, Limits())
    assert "text" not in index.rows[only]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([], "the item is empty; give text, or the files image and sound"),
        ([("label", "x")], "the item is empty"),
        ([("text", " ")], "the item is empty"),
        ([("text", "a"), ("text", "b")], "an item has the fields id, text, label, each once; got 'text'"),
        ([("x" * 90, "a")], f"each once; got '{'x' * 80}'"),
        ([("text", "a" * 2001)], "at most 2000"),
    ],
)
def test_what_is_no_item(fields, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        add(Keeping(tmp_path), Form(fields), KINDS, Limits())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("problems", "sentence"), [([], "nothing of it can be read"), (["a is bad", "b is bad"], "a is bad; b is bad")]
)
def test_an_item_that_the_index_does_not_take_leaves_no_files(problems, sentence, tmp_path):
    with pytest.raises(InputError, match=f"the item cannot be used: {sentence}$"):
        add(Keeping(tmp_path, problems), Form([("text", "a")]), KINDS, Limits())
    assert list((tmp_path / "added").iterdir()) == []


def test_an_index_elsewhere_takes_no_files():
    with pytest.raises(InputError, match="not on the disk of the server"):
        add(Keeping("s3://bucket/index"), Form([("text", "a")]), KINDS, Limits())
