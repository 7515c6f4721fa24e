"""A folder as a collection: what is one item, what is a label, and what is said about the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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


def test_a_folder_called_train_among_others_is_a_label(tmp_path) -> None:
    put(tmp_path, "train/a.png", "bus/b.png")
    assert [item.columns["labels"] for item in read_folder(tmp_path, Problems()).items] == ["bus", "train"]


def test_several_files_of_one_kind_are_kept(tmp_path) -> None:
    put(tmp_path, "a.png", "a.jpg", "a.wav", "a.txt", "a.md")
    manifest = read_folder(tmp_path, problems := Problems())
    assert not problems.entries
    assert manifest.items[0].cells["image"] == (str(tmp_path / "a.jpg"), str(tmp_path / "a.png"))
    assert manifest.items[0].cells["sound"] == str(tmp_path / "a.wav")
    assert len(manifest.items[0].cells["text"]) == len(manifest.items[0].text_files) == 2


def test_hidden_files_are_skipped_and_strangers_are_counted(tmp_path) -> None:
    put(tmp_path, "a.png", ".hidden.png", ".cache/b.png", "notes.xyz", "more.XYZ", "Makefile")
    problems = Problems()
    manifest = read_folder(tmp_path, problems)
    assert [item.id for item in manifest.items] == ["a"]
    assert sorted(problem.detail.split(" (")[0] for problem in problems) == ["1 x no suffix", "2 x .xyz"]
    assert problems.blocking() == []


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


def test_texts_that_cannot_be_used(tmp_path) -> None:
    put(tmp_path, "a.png", "b.png")
    put(tmp_path, "a.txt", content=b"caf\xe9")
    put(tmp_path, "b.txt", content=b" \n")
    problems = Problems()
    manifest = read_folder(tmp_path, problems)
    assert sorted(kinds_of(problems)) == ["empty file", "not a text"]
    assert manifest.kinds == {"image": "image"}


def test_a_folder_per_kind_is_pointed_out(tmp_path) -> None:
    put(tmp_path, *(f"images/{i}.png" for i in range(4)), *(f"sounds/{i}.wav" for i in range(4)))
    problems = Problems()
    read_folder(tmp_path, problems)
    assert kinds_of(problems) == ["no item has two modalities"]
    assert "images, sounds" in problems.entries[0].detail


def test_no_folder_and_nothing_in_it(tmp_path) -> None:
    with pytest.raises(InputError, match="not a folder"):
        read_folder(tmp_path / "absent", Problems())
    put(tmp_path, "a.xyz")
    with pytest.raises(InputError, match="no file that can be part of an item"):
        read_folder(tmp_path, Problems())
