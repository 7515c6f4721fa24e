"""A folder is searched without being told where its index is: made once, brought up to date, never inside the folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from calmrl import Index
from calmrl._support.places import index_of
from calmrl.encoders.registry import DEFAULTS, PACKAGES
from calmrl.errors import InputError
from calmrl.workflows.open import open_index
from tests.support.colour_world import ENCODED, colour, write_item, write_picture, write_sound


@pytest.fixture
def folder(tmp_path, monkeypatch, colour_encoders):
    """Twelve items of pictures and texts, where the encoders of colours are the default and the cache is empty."""
    for kind, name in {"text": "read", "image": "see", "audio": "hear"}.items():
        monkeypatch.setitem(DEFAULTS, kind, name)
        monkeypatch.setitem(PACKAGES, name, ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(12):
        write_item(tmp_path / "photos", number, {"image", "text"} if number % 3 else {"image"})
    return tmp_path / "photos"


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_made_once_and_then_brought_up_to_date(folder, tmp_path):
    before, told = files_in(folder), []
    opened = open_index(folder, report=told.append)
    assert opened.done == "made"
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


def test_files_of_another_kind(folder):
    open_index(folder)
    write_sound(folder / "dark" / "c2.wav", colour(2))
    told = []
    opened = open_index(folder, report=told.append)
    assert opened.done == "made again"
    assert "sound came after it was made, so it is made again" in told
    assert opened.index.search(sound=folder / "dark" / "c2.wav")[0].id == "dark/c2"
    assert open_index(folder).done == "nothing has changed"


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
    assert err.splitlines()[0] == f"{folder} is no index: searching that of its files, {index_of(folder)}"
    assert '"found": [' in out
    code, out, err = calmrl("search", str(folder), "c5", "-k", "1")
    assert (code, err.splitlines()[1]) == (0, "nothing has changed")
    assert "light/c5" in out
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
