"""What a change of an index says, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.search.update import FolderChanges

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl import Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.errors import InputError
from calmrl.search.update import Change
from tests.support.colour_world import colour, settings, write_picture, write_sound, write_text


def features(ids, name="here") -> FeatureSet:
    values = np.random.default_rng(0).normal(size=(len(ids), 4)).astype(np.float32)
    return FeatureSet({"image": values}, None, meta_table(len(ids), ids=list(ids)), name=name)


def test_lines_for_people():
    assert Change().lines() == ["0 added, 0 changed, 0 unchanged"]
    change = Change(["a", "b"], ["c"], ["d"], ["e", "f"], ["g"], 5, ["a problem"])
    assert change.lines() == [
        "a problem",
        "2 added, 1 changed, 5 unchanged, 1 removed",
        "1 item that was removed from the index stays out; `removed=True` adds it again, and so does naming one of its files",
        "2 items are gone from their source but still in the index; `prune=True` removes what is gone",
    ]


@pytest.fixture
def index(tmp_path):
    return Index.build(features("abcdx"), tmp_path / "ix", model=settings())


@pytest.mark.parametrize(("ids", "named"), [("abc", "'a', 'b', 'c'"), ("abcd", "'a', 'b', 'c'")])
def test_ids_of_another_source_are_named(index, ids, named):
    with pytest.raises(
        InputError, match=rf"{len(ids)} ids are in the index already, from here \(first: {named}\); rename"
    ):
        index.add(features([*ids, "new"], name="there"))
    assert index.add(features("new", name="there")).added == list("new")


@pytest.mark.parametrize(("unknown", "named"), [("efg", "'e', 'f', 'g' in"), ("efgh", "'e', 'f', 'g' and 1 more in")])
def test_unknown_ids_are_named(index, unknown, named):
    with pytest.raises(InputError, match=f"no item {named} .*ix; nothing was removed"):
        index.remove(["x", *unknown])
    assert index.remove([]) == 0
    assert len(index) == 5


@pytest.fixture
def folder(tmp_path, colour_encoders):
    """Three pictures, one of them with a text; the index knows pictures and texts."""
    pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")
    (tmp_path / "f" / "sub").mkdir(parents=True)
    for number, name in enumerate(("a", "b", "sub/c")):
        write_picture(tmp_path / "f" / f"{name}.png", colour(number))
    write_text(tmp_path / "f" / "b.txt", colour(1))
    Index.build(tmp_path / "f", tmp_path / "ix", {"image": "see", "text": "read"}, model=settings())
    return tmp_path / "f"


def test_removed_items_stay_out_unless_one_of_their_files_is_named(folder):
    index = Index.open(folder.parent / "ix")
    for file, id in (("a.png", "a"), ("b.txt", "b"), ("sub/c.png", "sub/c")):
        assert index.remove(id) == 1
        change = index.add(folder)
        assert (change.added, change.left_out, change.unchanged) == ([], [id], 2)
        assert index.add(folder / file).added == [id]
        assert index.add(folder).unchanged == 3


def test_files_of_a_kind_that_the_index_lacks(folder):
    index = Index.open(folder.parent / "ix")
    write_sound(folder / "a.wav", colour(0))
    write_sound(folder / "b.wav", colour(1))
    change = index.add(folder)
    assert change.changed == ["a", "b"]
    (problem,) = change.problems
    assert problem.endswith("2 files; the index has text, image: make it again to include them")
    assert "sound is not in the index" in problem


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


def test_a_text_that_cannot_be_read_is_not_new_again(folder):
    """Neither one that came with a new item, nor one of an item that has something else and a name that says nothing."""
    index = Index.open(folder.parent / "ix")
    (folder / "IMG_0001.txt").write_bytes(b"\xff\x00")
    (folder / "a.txt").write_bytes(b"\xff\x01")
    assert index.folder_changes().new
    assert not index.add(folder).added
    assert not index.folder_changes()
    (folder / "a.txt").write_bytes(b"\xff\x01\x02")
    assert index.folder_changes().new
    index.add(folder)
    assert not index.folder_changes()
    made = Index.build(folder, folder.parent / "another", {"image": "see", "text": "read"}, model=settings())
    assert not made.folder_changes()


def test_what_is_no_part_of_a_folder_is_not_new(folder):
    index = Index.open(folder.parent / "ix")
    for name in ("notes.xyz", ".hidden.png", ".git/d.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("xy")
    (folder / "broken.png").symlink_to("nowhere")
    (folder / "linked").symlink_to(folder / "sub", target_is_directory=True)
    assert index.folder_changes() == FolderChanges()
    index.remove(["a", "sub/c"])
    assert not index.folder_changes()
    (folder / "sub" / "c.png").rename(folder / "sub" / "d.png")
    write_text(folder / "b.txt", colour(8))
    (folder / "b.png").unlink()
    root = str(folder.resolve())
    changes = FolderChanges((f"{root}/sub/d.png",), (f"{root}/b.txt",), (f"{root}/b.png",), (root,))
    assert index.folder_changes() == changes
    folder.rename(folder.with_name("elsewhere"))
    assert not index.folder_changes()  # a disk may be missing
