"""Names that downloaders give to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from calmrl.data.media.public_collections import COLLECTION_SUFFIXES, MediaFiles
from calmrl.errors import InputError
from calmrl.paper.collections.annotation_files import ClipNames
from tests.support.publisher_files import media, write


def films(folder: Path, *names: str) -> MediaFiles:
    return MediaFiles(write(folder, media(*names)), COLLECTION_SUFFIXES["vision"])


@pytest.mark.parametrize("name", [
    "a-b_000030.mp4", "a-b_30.MKV", "a-b_30_40.webm", "a-b_30000_40000.mp4", "a-b_30.000_40.000.mp4", "Ya-b.mp4",
    "deep/er/a-b_000030_000040.mp4", "a-b.mp4", "Ya-b_30_40.avi", "a-b_30.000.mp4", "number7.mp4",
])  # fmt: skip
def test_names_of_a_clip(tmp_path, name) -> None:
    files = films(tmp_path, name, "a-b_31.mp4", "b.mp4")
    assert files.find(ClipNames("a-b", 30.0, 40.0, ["number7"])) == str(tmp_path / name)
    assert films(tmp_path / "other", "a-b.mp4").find(ClipNames("a-b", 30, 40, whole=False)) is None


def test_the_clip_is_preferred_to_the_whole_video_and_good_suffixes_to_others(tmp_path) -> None:
    files = films(tmp_path, "v.mp4", "v_000030.avi", "w.mov.mp4", "w.mp4", "x.mkv", "deep/x.mp4", "clip.jpg", "z.5.mp4")
    assert files.find(ClipNames("v", 30, 40)) == str(tmp_path / "v_000030.avi")
    assert files.find(["w"]) == str(tmp_path / "w.mp4")
    assert files.find(["w.mov"]) == str(tmp_path / "w.mp4")
    assert files.find(["x"]) == str(tmp_path / "deep/x.mp4")
    assert files.find(["clip"]) is None  # a thumbnail is no film
    assert files.find(["z.5"]) == str(tmp_path / "z.5.mp4")
    assert files.find(["z"]) is None
    assert files.expected("y") == str(tmp_path / "y.mp4")
    assert files.expected("y.m4v") == str(tmp_path / "y.m4v")


def test_two_files_of_one_name_are_refused(tmp_path) -> None:
    files = films(tmp_path, "224p/v.mp4", "480p/v.mp4", "v2.mp4")
    with pytest.raises(InputError, match=r"holds v more than once \(224p/v.mp4, 480p/v.mp4\)"):
        files.find(["v"])
    assert files.find(["480p/v.mp4"]) == str(tmp_path / "480p/v.mp4")
    with pytest.raises(InputError, match="no folder"):
        films(tmp_path / "x", "y.mp4").__class__(tmp_path / "none", (".mp4",))


def test_accents_are_the_same_however_they_are_written(tmp_path) -> None:
    files = films(tmp_path, "Cafe\u0301.mp4")
    assert files.find(["Caf\u00e9.mp4"]) == str(tmp_path / "Cafe\u0301.mp4")


def test_the_sound_of_a_film_counts_after_sounds(tmp_path) -> None:
    files = MediaFiles(write(tmp_path, media("a.mp4", "a.wav", "b.mp4")), COLLECTION_SUFFIXES["audio"])
    assert [Path(str(files.find([name]))).name for name in "ab"] == ["a.wav", "b.mp4"]
