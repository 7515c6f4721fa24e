"""A folder as a collection: what is one item, what is a label, and what is said about the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calmrl.data.media import documents
from calmrl.data.media.folder import read_folder
from calmrl.data.media.problems import Problems
from calmrl.errors import InputError


def put(root: Path, *names: str, content: bytes = b"x") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def kinds_of(problems: Problems) -> list[str]:
    return [problem.kind for problem in problems]


def test_files_with_one_stem_in_one_folder_are_one_item(tmp_path) -> None:
    put(tmp_path, "dogs/rex.png", "dogs/rex.WAV", "cats/rex.jpg", "cats/small/tom.mp4", "loose.wav")
    put(tmp_path, "dogs/rex.txt", content=b"\xef\xbb\xbf a dog\n that barks\n")
    problems = Problems()
    manifest = read_folder(tmp_path, problems)
    assert not problems
    assert manifest.kinds == {"text": "text", "image": "image", "video": "image", "sound": "audio"}
    items = {item.id: item for item in manifest.items}
    assert list(items) == ["cats/rex", "cats/small/tom", "dogs/rex", "loose"]
    assert items["dogs/rex"].cells == {
        "text": ["a dog that barks"],
        "image": str(tmp_path / "dogs/rex.png"),
        "sound": str(tmp_path / "dogs/rex.WAV"),
    }
    assert [item.columns["labels"] for item in manifest.items] == ["cats", "cats/small", "dogs", None]
    assert manifest.column("split") is None


def test_a_text_that_looks_like_a_list_is_one_text(tmp_path) -> None:
    put(tmp_path, "a.txt", content=b'["one", "two"]')
    assert read_folder(tmp_path, Problems()).items[0].cells["text"] == ['["one", "two"]']


def test_folders_called_after_splits_are_the_split(tmp_path) -> None:
    put(tmp_path, "train/dogs/a.png", "train/b.png", "test/dogs/c.png")
    manifest = read_folder(tmp_path, Problems())
    assert {item.id: (item.columns["split"], item.columns["labels"]) for item in manifest.items} == {
        "test/dogs/c": ("test", "dogs"),
        "train/b": ("train", None),
        "train/dogs/a": ("train", "dogs"),
    }


def test_several_files_of_one_kind_are_kept(tmp_path) -> None:
    put(tmp_path, "a.png", "a.jpg", "a.wav", "a.txt", "a.md")
    manifest = read_folder(tmp_path, problems := Problems())
    assert not problems.entries
    assert manifest.items[0].cells["image"] == (str(tmp_path / "a.jpg"), str(tmp_path / "a.png"))
    assert manifest.items[0].cells["sound"] == str(tmp_path / "a.wav")
    assert len(manifest.items[0].cells["text"]) == len(manifest.items[0].text_files) == 2


def test_links_out_of_the_folder_are_refused(tmp_path) -> None:
    put(tmp_path, "secret.png", "home/a.png", "outside/b.png")
    os.symlink(tmp_path / "secret.png", tmp_path / "home/stolen.png")
    os.symlink("a.png", tmp_path / "home/inside.png")
    os.symlink(tmp_path / "outside", tmp_path / "home/more")
    os.symlink("nowhere.png", tmp_path / "home/broken.png")
    problems = Problems()
    manifest = read_folder(tmp_path / "home", problems)
    assert [item.id for item in manifest.items] == ["a", "inside"]
    assert sorted(kinds_of(problems)) == ["link out of the folder", "link to a folder", "not a file"]


def test_how_long_a_text_may_be(tmp_path: Path, monkeypatch) -> None:
    assert documents.TEXT_BYTES == 1 << 20
    monkeypatch.setattr(documents, "TEXT_BYTES", 9)
    put(tmp_path, "a.png", "b.png")
    put(tmp_path, "a.txt", content=b"x" * 9)
    put(tmp_path, "b.txt", content=b"x" * 10)
    manifest = read_folder(tmp_path, problems := Problems())
    assert ["text" in item.cells for item in manifest.items] == [True, False]
    assert [(p.kind, p.scope, p.id, p.column, p.detail) for p in problems] == [
        ("text too long", "cell", "b", "text", "b.txt has 10 bytes")
    ]


def test_one_folder_alone_is_no_split(tmp_path: Path) -> None:
    put(tmp_path, "train/a.png")
    assert [item.columns for item in read_folder(tmp_path, Problems()).items] == [{"split": None, "labels": "train"}]
    put(tmp_path, "test/a.png", "b.png")  # one lies outside
    assert {item.columns["split"] for item in read_folder(tmp_path, Problems()).items} == {None}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["i/0.png", "i/1.png", "s/0.wav", "s/2.wav"], None),  # 1 of 3 stems
        (["i/0.png", "i/1.png", "s/0.wav"], "1 stems occur in several folders (i, s)"),  # 1 of 2
        (["i/0.png", "i/1.png", "s/0.png"], None),  # one kind
        (["i/0.png", "i/0.wav", "s/0.wav"], None),  # an item has two
        ([f"{f}/0.png" for f in "abcdef"] + ["g/0.wav"], "1 stems occur in several folders (a, b, c, d, e)"),
    ],
)
def test_when_folders_look_like_kinds(tmp_path: Path, names: list[str], told: str | None) -> None:
    put(tmp_path, *names)
    read_folder(tmp_path, problems := Problems())
    assert [p.detail[: len(told or "")] for p in problems] == ([] if told is None else [told])
    assert {(p.kind, p.scope) for p in problems} <= {("no item has two modalities", "table")}


def test_what_is_said_of_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        read_folder(tmp_path / "absent", Problems())
    put(tmp_path, "a.xyz", "b.xyz", "c", ".hidden.png", ".cache/b.png")
    with pytest.raises(InputError, match=r"\(3 others\); understood are .*\.png"):
        read_folder(tmp_path, Problems())
    put(tmp_path, "x.png", "x.jpg", "y.txt", content=b"\xff")
    put(tmp_path, "w.txt", content=b" \n")
    os.symlink("nowhere", tmp_path / "z.png")
    manifest = read_folder(tmp_path, problems := Problems())
    assert manifest.kinds == {"image": "image"}
    assert sorted((p.kind, p.scope, p.id, p.column) for p in problems) == [
        ("empty file", "cell", "w", "text"), ("file not understood", "file", "", ""),
        ("file not understood", "file", "", ""), ("not a file", "table", "", ""), ("not a text", "cell", "y", "text"),
    ]  # fmt: skip
    details = {p.kind: p.detail for p in problems}
    assert details["not a text"] == "y.txt is not UTF-8 (byte 0); save it as UTF-8"
    assert details["file not understood"] == "1 x no suffix (first: c)"
