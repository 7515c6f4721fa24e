"""A collection on disk: what is missing, what is where, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from calmrl.data import COLLECTIONS, PublicCollection
from calmrl.data.media.manifest import build
from calmrl.data.media.problems import Problems
from calmrl.data.media.public_collections import Entry, PublishedSplit, Publisher
from calmrl.errors import InputError
from tests.support import publisher_files as made
from tests.support.publisher_files import write


def test_missing_media_stay_paths(tmp_path) -> None:
    content = PublicCollection("msrvtt", write(tmp_path, made.MSRVTT)).read()
    [lost] = [row for _, row in content.rows if not Path(row["vision"]).exists()]
    assert (lost["id"], Path(lost["vision"]).name) == ("video7020", "video7020.mp4")
    assert content.kinds == {"vision": "image", "audio": "audio", "text": "text"}


def test_a_modality_without_any_file_is_left_out_and_told(tmp_path) -> None:
    files = {name: value for name, value in made.VGGSOUND.items() if not name.endswith(".mp4")}
    content = PublicCollection("vggsound", write(tmp_path, files)).read()
    assert content.kinds == {"audio": "audio", "text": "text"}
    assert content.notes == [f"no file of vision in {tmp_path}: the collection is read without vision"]
    asked = PublicCollection("vggsound", tmp_path).read(["vision", "text"])
    assert not any(Path(row["vision"]).exists() for _, row in asked.rows)
    with pytest.raises(InputError, match=r"no media file of vggsound lies in .*---g-f_I2yQ_000001.* for 3 items"):
        PublicCollection("vggsound", write(tmp_path / "e", {"vggsound.csv": files["vggsound.csv"]})).read()


def test_annotations_and_media_elsewhere(tmp_path) -> None:
    lists = {name: value for name, value in made.AUDIOCAPS.items() if name.endswith(".csv")}
    sounds = {name: value for name, value in made.AUDIOCAPS.items() if not name.endswith(".csv")}
    write(tmp_path / "lists", lists)
    folders = {
        "audio": write(tmp_path / "sounds", sounds),
        "vision": write(tmp_path / "films", made.media("VjSEIRnLAh8.mp4")),
    }
    collection = PublicCollection("audiocaps", tmp_path, "v1", tmp_path / "lists", folders)
    content = collection.read()
    assert collection.modalities == ("audio", "vision", "text")
    assert [Path(row["vision"]).exists() for _, row in content.rows] == [False, False, True]
    assert content.rows[1][1]["text"] == ["Constant rattling noise and sharp vibrations", "A machine rattles"]


def test_counts_of_texts(tmp_path) -> None:
    content = PublicCollection("audiocaps", write(tmp_path, made.AUDIOCAPS), "v2").read()
    assert content.counts == (
        "audiocaps v2: train 0 of 91,256 published, val 0 of 2,475 published, test 3 of 4,875 published texts"
    )


def test_duplicate_ids_are_problems(tmp_path) -> None:
    line = "ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi\n"
    write(tmp_path, made.UCF101 | {"ucfTrainTestlist/testlist01.txt": line})
    content = PublicCollection("ucf101", tmp_path).read()
    problems = Problems()
    assert len(build(content.rows, content.kinds, problems, root=Path()).items) == 2
    [problem] = problems
    assert (problem.kind, problem.id) == ("duplicate id", "v_ApplyEyeMakeup_g08_c01")


@pytest.mark.parametrize(("arguments", "said"), [
    (("ucf", "x"), 'unknown collection "ucf"; did you mean "ucf101"'),
    (("msrvtt", "x", "1ka"), 'unknown split of msrvtt "1ka"; did you mean "1k-a"'),
    (("msrvtt", "x", None, None, {"sound": "x"}), 'unknown modality of media files "sound"'),
])  # fmt: skip
def test_names_that_do_not_exist(arguments, said) -> None:
    with pytest.raises(InputError, match=said):
        PublicCollection(*arguments)


def test_folders_that_do_not_fit(tmp_path) -> None:
    with pytest.raises(InputError, match="no folder"):
        PublicCollection("clotho", tmp_path / "none").read()
    write(tmp_path, {"notes.txt": "x"})
    with pytest.raises(
        InputError, match=r"holds none of the annotation files clotho_captions_dev.*; it holds notes.txt"
    ):
        PublicCollection("clotho", tmp_path).read()
    write(tmp_path, {f"{copy}/esc50.csv": made.ESC50["meta/esc50.csv"] for copy in "ab"})
    with pytest.raises(InputError, match=r"holds esc50.csv more than once \(a/esc50.csv, b/esc50.csv\)"):
        PublicCollection("esc50", tmp_path).read()
    with pytest.raises(InputError, match='"vision" is no modality of esc50; it has audio, text'):
        PublicCollection("esc50", tmp_path).read(["vision"])


class Pairs(Publisher):
    """Pairs of a name and a text, one per line."""

    media = ("audio",)
    splits: ClassVar = {"all": PublishedSplit({"test": ("pairs.txt",)}, {"test": 2})}

    def read_file(self, path, notes):
        lines = [line.split(" ", 1) for line in path.read_text().splitlines()]
        return [Entry(i, [name], {"id": name, "text": [text]}) for i, (name, text) in enumerate(lines, start=1)]


def test_a_new_collection_is_reached_by_its_name_alone(tmp_path, monkeypatch, calmrl) -> None:
    monkeypatch.setitem(COLLECTIONS, "pairs", f"{__name__}:Pairs")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "pairs.txt").write_text("a rain\nb a bell\n")
    (tmp_path / "c" / "a.wav").write_bytes(b"")
    code, _, err = calmrl("init", tmp_path / "c", "--collection", "pairs", "--out", tmp_path / "work")
    assert code == 0, err
    assert "pairs all: test 2 of 2 published items" in err
    assert 'collection: {name: "pairs", ' in (tmp_path / "work" / "extract.yaml").read_text()
    code, _, err = calmrl("check", tmp_path / "c", "--collection", "pairs")
    assert code == 2
    assert "b.wav" in err
    assert calmrl("ls", "collections")[1].count("pairs ") == 1
