"""Lists in other encodings, and lists that are broken."""

from __future__ import annotations

import pytest

from calmrl.data import PublicCollection
from calmrl.errors import InputError
from calmrl.paper.collections.annotation_files import read_cells, read_json, read_table, read_text
from tests.support.publisher_files import CLOTHO, CLOTHO_HEAD, write


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-8"])
def test_byte_order_marks_are_dropped_without_a_word(tmp_path, codec) -> None:
    (tmp_path / "a.csv").write_bytes("file_name,caption_1\nCafé.wav,ä\n".encode(codec))
    notes: list[str] = []
    assert list(read_table(tmp_path / "a.csv", ["file_name"], notes)) == [
        (2, {"file_name": "Café.wav", "caption_1": "ä"})
    ]
    assert not notes


@pytest.mark.parametrize(("codec", "content", "said"), [
    ("latin-1", "Café", "read as cp1252"), ("cp1252", "it’s", "read as cp1252"), ("latin-1", "\x81é", "read as latin-1"),
])  # fmt: skip
def test_other_encodings_are_read_and_told(tmp_path, codec, content, said) -> None:
    (tmp_path / "a.txt").write_bytes(f"one\n{content}".encode(codec))
    notes: list[str] = []
    assert read_text(tmp_path / "a.txt", notes) == f"one\n{content}"
    assert notes == [f"a.txt is not UTF-8 (first in line 2); it is {said}"]


def test_the_note_reaches_the_collection(tmp_path) -> None:
    files = CLOTHO | {"clotho_captions_evaluation.csv": (CLOTHO_HEAD + "Caf\u00e9.wav,a,b,c,d,e\n").encode("latin-1")}
    content = PublicCollection("clotho", write(tmp_path, files)).read()
    assert content.rows[-1][1]["id"] == "Caf\u00e9.wav"
    assert any("clotho_captions_evaluation.csv is not UTF-8" in note for note in content.notes)


def test_a_file_that_only_starts_as_utf16(tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfea\x00b")
    with pytest.raises(InputError, match="starts as utf-16 but is not"):
        read_text(tmp_path / "a.csv", [])


def test_broken_csv_and_json(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "x" * 200_000 + ",1\n")
    with pytest.raises(InputError, match=r"a.csv line 2 is not CSV"):
        list(read_cells(tmp_path / "a.csv", []))
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(InputError, match="got an empty file"):
        list(read_table(tmp_path / "a.csv", ["a"], []))
    (tmp_path / "a.json").write_text('{"a": 1,\n "b": }')
    with pytest.raises(InputError, match=r"is not JSON \(.*line 2"):
        read_json(tmp_path / "a.json", [])
    with pytest.raises(InputError, match="no annotation file at"):
        read_json(tmp_path / "none.json", [])


def test_only_comments_are_left_out(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("# one\n#two.wav,b\n")
    assert len(list(read_cells(tmp_path / "a.csv", []))) == 2
    assert not list(read_cells(tmp_path / "a.csv", [], comment="#"))
