"""Adding and removing one item, with a stand-in for the index that keeps what it was given."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from calmrl.errors import InputError
from tests.support import shapes as data

PICTURE, TONE = data.png("red", "bar"), data.tone(440)


class Keeping:
    """Takes what is in the manifest, unless it is told to refuse it."""

    expected = {}  # noqa: RUF012

    def __init__(self, path, problems=None) -> None:
        self.path, self.problems, self.rows, self.folders = path, problems, {}, {}

    def __len__(self):
        return len(self.rows)

    def modalities(self):
        return {"photo": {"kind": "image"}, "caption": {"kind": "text"}, "sound": {"kind": "audio"}}

    def labels(self):
        return []

    def about(self):
        return {}

    def add(self, manifest, refit, prune=False):
        assert refit is False  # a request does not wait for that
        (line,) = manifest.read_text(encoding="utf-8").splitlines()
        row = json.loads(line)
        if prune:
            for id in [id for id, folder in self.folders.items() if folder == manifest.parent]:
                del self.rows[id], self.folders[id]
        if self.problems is not None:
            return SimpleNamespace(added=[], problems=self.problems)
        self.rows[row["id"]], self.folders[row["id"]] = row, manifest.parent
        return SimpleNamespace(added=[row["id"]], problems=[])

    def item(self, id):
        if id not in self.rows:
            raise InputError("no such item")
        row = self.rows[id]
        paths = {name: row[name] for name in ("photo", "sound") if name in row}
        return data.ShapeItem(
            id, 1.0, tuple(paths), row.get("text"), row.get("labels"), paths, root=str(self.folders[id])
        )

    def file(self, id, modality):
        path = self.folders[id] / self.rows[id][modality]
        if not path.exists():
            raise InputError("gone")
        return path

    def remove(self, ids):
        for id in ids:
            del self.rows[id]


def added(client, files=None, **fields):
    """The answer to a form with these files and fields."""
    return client.post("/api/items", files={**(files or {}), **{name: (None, text) for name, text in fields.items()}})


def test_an_item_has_a_folder_of_its_own_until_it_is_removed(tmp_path, client_of):
    index = Keeping(tmp_path)
    with client_of(index, allow_add=True) as client:
        made = added(client, {"image": PICTURE, "sound": TONE}, id=" a/b ", text=" words ", label="red")
        assert (made.status_code, made.json()["id"], made.json()["text"]) == (201, "a/b", "words")
        row = index.rows["a/b"]
        assert (row["labels"], row["text"], row["caption"]) == ("red", "words", "words")
        (folder,) = (tmp_path / "added").iterdir()
        assert (folder / row["photo"]).read_bytes() == PICTURE
        assert (folder / row["sound"]).read_bytes() == TONE
        assert sorted(file.name for file in folder.iterdir()) == sorted([row["photo"], row["sound"], "item.jsonl"])
        assert client.get("/api/about").json()["items"] == 1
        (folder / row["sound"]).unlink()  # one that is gone already
        gone = client.delete("/api/items/a%2Fb")
        assert (gone.status_code, gone.content) == (204, b"")
        assert client.delete("/api/items/a%2Fb").status_code == 404
        assert client.get("/api/about").json()["items"] == 0  # counted again at once
    assert list((tmp_path / "added").iterdir()) == []


def test_files_that_were_not_uploaded_stay(tmp_path, client_of):
    index = Keeping(tmp_path / "index")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.png").write_bytes(b"x")
    index.rows["a"], index.folders["a"] = {"photo": "a.png"}, tmp_path / "own"
    with client_of(index, allow_add=True) as client:
        assert client.delete("/api/items/a").status_code == 204
    assert index.rows == {}
    assert (tmp_path / "own" / "a.png").is_file()


def test_an_item_without_an_id_is_called_as_its_file_or_its_text(tmp_path, client_of):
    index = Keeping(tmp_path)
    given = [
        ({}, {"id": " ", "text": "a dog\nin the snow"}, "a dog in the snow"),
        ({}, {"text": "a dog in the snow"}, "a dog in the snow 2"),
        ({"image": ("../../my photo.2.png", PICTURE)}, {"text": "words"}, "my photo.2"),
        ({"sound": ("..\\a\\b.wav", TONE)}, {}, ".. a b"),
        ({"image": (".png", PICTURE)}, {}, "item"),
        ({}, {"text": "long " * 100}, ("long " * 100)[:60].strip()),
    ]
    with client_of(index, allow_add=True) as client:
        for files, fields, id in given:
            answer = added(client, files, **fields)
            assert (answer.status_code, answer.json().get("id")) == (201, id)
            assert answer.json()["added"] is True
    assert "text" not in index.rows["item"]


def test_an_item_that_was_added_can_be_renamed_and_no_other(tmp_path, client_of):
    index = Keeping(tmp_path / "index")
    index.rows["own"], index.folders["own"] = {"photo": "a.png"}, tmp_path / "own"

    def renamed(id, new):
        answer = client.patch(f"/api/items/{id}", files={"id": (None, new)})
        return answer.status_code, answer.json().get("id") or answer.json()["error"]

    with client_of(index, allow_add=True) as client:
        added(client, {"image": PICTURE}, id="a", text="words")
        assert renamed("a", " b/c ") == (200, "b/c")
        assert index.rows["b/c"] == {**index.rows["b/c"], "text": "words", "photo": "3.png"}
        assert set(index.rows) == {"own", "b/c"}
        (manifest,) = (tmp_path / "index" / "added").glob("*/item.jsonl")
        assert json.loads(manifest.read_text())["id"] == "b/c"
        assert renamed("b%2Fc", "own") == (400, "there is an item 'own' already; choose another name")
        assert renamed("b%2Fc", " ") == (400, "the new name is empty; give it as id")
        assert renamed("own", "d")[1].startswith("'own' was not added on this page; rename its file")
        assert renamed("nothing", "d")[0] == 404
        assert client.delete("/api/items/b%2Fc").status_code == 204
    assert list((tmp_path / "index" / "added").iterdir()) == []
    with client_of(index) as client:
        assert renamed("own", "d")[0] == 403


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ([("label", "")], "the item is empty; give text, or the files image and sound"),
        ([("label", "x")], "the item is empty"),
        ([("text", " ")], "the item is empty"),
        ([("text", "a"), ("text", "b")], "text is given twice; give it once"),
        ([("x" * 90, "a")], f'unknown parameter "{"x" * 80}"'),
        ([("text", "a" * 2001)], "at most 2000"),
    ],
)
def test_what_is_not_an_item(fields, sentence, tmp_path, client_of):
    with client_of(Keeping(tmp_path), allow_add=True) as client:
        answer = client.post("/api/items", files=[(name, (None, text)) for name, text in fields])
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("problems", "sentence"), [([], "nothing of it can be read"), (["a is bad", "b is bad"], "a is bad; b is bad")]
)
def test_an_item_that_the_index_does_not_take_leaves_no_files(problems, sentence, tmp_path, client_of):
    with client_of(Keeping(tmp_path, problems), allow_add=True) as client:
        answer = added(client, text="a")
    assert (answer.status_code, answer.json()) == (400, {"error": f"the item cannot be used: {sentence}"})
    assert list((tmp_path / "added").iterdir()) == []


def test_an_index_elsewhere_takes_no_files(client_of):
    with client_of(Keeping("s3://bucket/index"), allow_add=True) as client:
        answer = added(client, text="a")
    assert answer.status_code == 400
    assert "not on the disk of the server" in answer.json()["error"]
