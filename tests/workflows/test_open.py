"""A folder is searched without being told where its index is: made once, brought up to date, never inside the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from calmrl import Index
from calmrl._support.filesystem import locked
from calmrl._support.places import index_of
from calmrl.errors import InputError
from calmrl.workflows.index import cached_indexes, open_index
from tests.support.colour_world import ENCODED, colour, write_item, write_picture, write_sound


@pytest.fixture
def folder(tmp_path, colours_by_default):
    """Twelve items of pictures and texts, where the encoders of colours are the default and the cache is empty."""
    for number in range(12):
        write_item(tmp_path / "photos", number, {"image", "text"} if number % 3 else {"image"})
    return tmp_path / "photos"


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_made_once_and_then_brought_up_to_date(folder, tmp_path):
    before, told = files_in(folder), []
    opened = open_index(folder, report=told.append)
    assert opened.done == "the index is made"
    assert told[0] == f"{folder}: 12 items: 8 texts and 12 pictures"
    assert told[1] == f"making its index in {index_of(folder)}; the files stay as they are"
    assert Path(opened.index.path) == index_of(folder)
    assert index_of(folder).parent == tmp_path / "cache" / "calmrl" / "indexes"
    assert files_in(folder) == before
    ENCODED.clear()
    assert open_index(folder).done == "nothing has changed"
    assert ENCODED == []
    write_item(folder, 50, {"image"})
    (folder / "dark" / "c0.png").unlink()
    again = open_index(folder)
    assert again.done == "1 added, 1 removed"
    assert ENCODED.count("see") <= 2  # the new picture, and the fixed one by which the encoder is recognised
    assert {item.id for item in again.index.items()} >= {"dark/c50"}


def test_more_problems_than_are_shown_say_where_all_are(folder):
    told = []
    for number in range(5):
        (folder / f"bad{number}.png").write_bytes(b"no picture")
    open_index(folder, report=told.append)
    assert f"all of them: calmrl check {folder} --all" in told


def test_indexes_whose_folder_is_gone_are_listed_and_removed(folder, tmp_path, calmrl):
    other = tmp_path / "other"
    for number in range(12):
        write_item(other, number, {"image", "text"})
    for source in (folder, other):
        open_index(source)
    (index_of(folder).parent / "begun.part").mkdir()
    assert not any(kept.gone for kept in cached_indexes())
    other.rename(tmp_path / "moved")
    listed = {kept.path: (kept.source, kept.gone, kept.size > 0) for kept in cached_indexes()}
    assert listed == {
        index_of(folder): (str(folder), False, True),
        index_of(other): (str(other), True, True),
        index_of(folder).parent / "begun.part": ("unfinished, or damaged", False, False),
    }
    line = next(line for line in calmrl("ls", "indexes")[1].splitlines() if str(other) in line)
    assert line.endswith(f"{other} (gone: calmrl remove --gone)")
    assert "removed 1 index\n" in calmrl("remove", "--gone")[2]
    assert not index_of(other).exists()
    assert open_index(folder).done == "nothing has changed"
    for wrong in (["remove", "--gone", "ix"], ["remove"], ["remove", "ix"]):
        assert calmrl(*wrong)[0] == 2


def test_files_of_another_kind(folder):
    open_index(folder)
    write_sound(folder / "dark" / "c2.wav", colour(2))
    told = []
    opened = open_index(folder, report=told.append)
    assert opened.done == "the index is made again"
    assert "sound came after it was made, so it is made again" in told
    assert opened.index.search(sound=folder / "dark" / "c2.wav")[0].id == "dark/c2"
    assert open_index(folder).done == "nothing has changed"


def test_an_index_that_is_made_again_under_a_reader(folder):
    reader = open_index(folder).index
    reader.remove("light/c5")
    write_sound(folder / "dark" / "c2.wav", colour(2))
    with locked(index_of(folder)), pytest.raises(InputError, match="another run is writing"):
        open_index(folder)
    again = open_index(folder)
    assert (again.done, len(again.index)) == ("the index is made again", 11)  # what was removed on purpose stays out
    assert reader.search(sound=folder / "dark" / "c2.wav")[0].id == "dark/c2"
    assert open_index(folder).done == "nothing has changed"


def test_what_was_put_into_it_otherwise_is_not_lost(folder, tmp_path):
    (tmp_path / "more").mkdir()
    write_picture(tmp_path / "more" / "seal.png", colour(77))
    open_index(folder).index.add(tmp_path / "more")
    write_sound(folder / "dark" / "c2.wav", colour(2))
    opened = open_index(folder)
    assert opened.done.startswith(f"1 changed, sound left out: {index_of(folder)} has no place for it")
    assert opened.index.item("seal").root == str(tmp_path / "more")


def test_what_is_gone_is_kept_where_a_disk_may_be_missing(folder, monkeypatch):
    open_index(folder)
    os.rename(folder / "light", folder / "bright")
    assert open_index(folder).done == "6 added, 6 removed"
    os.rename(folder / "bright", folder.parent / "bright")
    for number in (2, 4):
        for file in (folder / "dark").glob(f"c{number}.*"):
            file.unlink()
    told: list[str] = []
    opened = open_index(folder, report=told.append)
    line = f"calmrl add {index_of(folder)} {folder} --prune"
    assert opened.done == f"8 gone but kept, in case they come back; remove them with: {line}"
    assert len(opened.index) == 12
    assert any("8 items are gone from their source but still in the index" in line for line in told)
    os.rename(folder.parent / "bright", folder / "bright")
    assert open_index(folder).done == "2 removed"


def test_a_folder_that_cannot_be_read_loses_nothing(folder, monkeypatch):
    for number in range(100, 110):
        write_item(folder, 2 * number, {"image"})
    open_index(folder)
    scan = os.scandir

    def refusing(path):
        if str(path) == str(folder / "light"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    opened = open_index(folder)
    assert opened.done.startswith("6 gone but kept")
    assert len(opened.index) == 22
    (folder / "dark" / "c0.png").write_bytes(b"changed")
    told: list[str] = []
    open_index(folder, report=told.append)
    assert "1 x folder that cannot be read -> left aside: light" in told


def test_two_tables_in_one_folder(folder, tmp_path):
    for name, numbers in {"one": range(8), "two": range(8, 12)}.items():
        rows = [f"{name}{n},photos/{'light' if n % 2 else 'dark'}/c{n}.png,colour {n} {n} {n}" for n in numbers]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id,image,text", *rows]))
    assert index_of(tmp_path / "one.csv") != index_of(tmp_path / "two.csv")
    open_index(tmp_path / "one.csv", tmp_path / "both")
    done = open_index(tmp_path / "two.csv", tmp_path / "both").done
    assert done.startswith("4 added, 8 gone but kept")
    assert len(Index.open(tmp_path / "both")) == 12


def test_a_place_that_cannot_be_written_to(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="is a file, so"):
        open_index(folder)


def test_an_index_at_an_address(folder, tmp_path):
    place = f"file://{tmp_path}/remote"
    assert open_index(folder, place).done == "the index is made"
    assert open_index(folder, place).done == "nothing has changed"


def test_where_it_is_told(folder, tmp_path):
    opened = open_index(folder, tmp_path / "mine")
    assert Path(opened.index.path) == tmp_path / "mine"
    assert not (tmp_path / "cache").exists()
    assert open_index(tmp_path / "mine").index.layout == opened.index.layout
    with pytest.raises(InputError, match="is an index itself"):
        open_index(tmp_path / "mine", tmp_path / "other")
    (tmp_path / "others").mkdir()
    write_picture(tmp_path / "others" / "a.png", colour(1))
    with pytest.raises(InputError, match=r"mine is the index of .*photos; choose another name with `index`"):
        open_index(tmp_path / "others", tmp_path / "mine")


def test_places_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("a/photos", "b/photos", "c/-- Ünïcode & spaces --", f"d/{'x' * 200}"):
        (tmp_path / name).mkdir(parents=True)
    places = [
        index_of(tmp_path / name) for name in ("a/photos", "b/photos", "c/-- Ünïcode & spaces --", f"d/{'x' * 200}")
    ]
    assert len(set(places)) == 4
    assert [place.name.rpartition("-")[0] for place in places] == ["photos", "photos", "Ünïcode-spaces", "x" * 60]
    monkeypatch.chdir(tmp_path / "a")
    assert index_of("photos") == index_of("../a/photos/") == places[0]
    os.symlink(tmp_path / "a" / "photos", tmp_path / "link")
    assert index_of(tmp_path / "link") == places[0]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not allowed, so it does not count
    monkeypatch.setattr("sys.platform", "linux")
    assert index_of("photos").parent == Path.home() / ".cache" / "calmrl" / "indexes"


def test_the_commands(folder, calmrl, monkeypatch):
    code, out, err = calmrl("search", str(folder), "the colour 1 2 3", "-k", "3", "--json")
    assert code == 0, err
    assert err.splitlines()[0] == f"searching the index of {folder}: {index_of(folder)}"
    assert '"found": [' in out
    code, out, err = calmrl("search", str(folder), "c5", "-k", "1")
    assert (code, err.splitlines()[1]) == (0, "nothing has changed")
    assert "light/c5  [image, text]  (name)" in out.replace("[text, image]", "[image, text]")
    (folder / "broken.png").write_bytes(b"no picture")
    code, _, err = calmrl("search", str(folder), "c5", "-k", "1")
    assert (code, "1 x cannot be read" in err) == (0, True)
    (folder / "broken.png").unlink()
    code, _, err = calmrl("search", str(index_of(folder)), "c5", "--index", "other")
    assert (code, "is an index itself, so --index says nothing; leave it out" in err) == (2, True)
    asked = []
    monkeypatch.setattr("calmrl.server.run_server", lambda index, **options: asked.append((index, options)))
    code, out, err = calmrl("open", str(folder), "--no-browser")
    assert code == 0, err
    assert f"its index is {index_of(folder)}" in err
    ((index, options),) = asked
    assert isinstance(index, Index)
    assert (options["port"], options["started"]) == (None, None)
    calmrl("open", str(folder))
    assert asked[1][1]["started"] is not None
