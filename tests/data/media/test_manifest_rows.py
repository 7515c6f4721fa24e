"""What becomes of every row and cell of a manifest: used, empty, or a problem that says where it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calmrl.data.media.manifest import (
    Item,
    Manifest,
    as_texts,
    build,
    drop_empty,
    guess_kinds,
    read_manifest,
    read_rows,
)
from calmrl.data.media.problems import Problems
from calmrl.errors import InputError

KINDS = {"image": "image", "text": "text"}


def built(*rows: dict[str, Any], kinds: dict[str, str] = KINDS, **options: Any) -> tuple[Manifest, list[tuple]]:
    problems = Problems()
    manifest = build(list(enumerate(rows, start=2)), kinds, problems, root=Path("/photos"), **options)
    return manifest, [(p.kind, p.scope, p.line, p.id, p.column, p.detail) for p in problems]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": " "}, ("empty id", "row", 3, "", "", "")),
        ({"id": None}, ("empty id", "row", 3, "", "", "")),
        ({"id": "\udcff"}, ("id is not UTF-8", "row", 3, "\udcff", "", "")),
        ({"id": " a "}, ("duplicate id", "row", 3, "a", "", "first in line 2")),
        ({"split": "dev"}, ("unknown split", "row", 3, "b", "split", "'dev' is not train, val, test")),
        ({"split": 1}, ("unknown split", "row", 3, "b", "split", "1 is not train, val, test")),
    ],
)
def test_rows_that_are_left_out(row: dict[str, Any], problem: tuple) -> None:
    manifest, problems = built({"id": "a", "image": "a.png", "text": "x"}, {"id": "b", "image": "b.png"} | row)
    assert [item.id for item in manifest.items] == ["a"]
    assert problems == [problem]


@pytest.mark.parametrize(("split", "kept"), [(None, None), ("", None), (" ", None), (" val ", "val"), ("test", "test")])
def test_splits(split: str | None, kept: str | None) -> None:
    manifest, problems = built({"id": "a", "image": "a.png", "text": "x", "split": split})
    assert not problems
    assert manifest.items[0].columns["split"] == kept
    assert manifest.parts() == {"a": kept or ""}


@pytest.mark.parametrize(
    ("cells", "kept", "problems"),
    [
        ({"image": "b.png"}, {"image": "/photos/b.png"}, []),
        ({"image": ""}, {}, []),
        ({"image": None}, {}, []),
        ({"image": 3}, {}, [("not a path", "cell", 2, "a", "image", "3")]),
        ({"image": 0}, {}, [("not a path", "cell", 2, "a", "image", "0")]),
        ({"text": ["x", " ", " y "]}, {"text": ["x", "y"]}, []),
        ({"text": ["x", 4]}, {}, [("not a text", "cell", 2, "a", "text", "4 is a int")]),
        ({"text": "\udcff"}, {}, [("not a text", "cell", 2, "a", "text", "'\\udcff' is not UTF-8")]),
    ],
)
def test_cells(cells: dict[str, Any], kept: dict[str, Any], problems: list[tuple]) -> None:
    manifest, found = built({"id": "a", "image": None, "text": None} | cells)
    assert manifest.items[0].cells == kept
    assert found == problems
    assert manifest.items[0].columns.get("text") == kept.get("text")


def test_columns_that_describe() -> None:
    row = {
        "id": "a",
        "image": "a.png",
        "labels": "",
        "text": ["x", 4],
        "meta.a": "\udcff",
        "meta.b": ["\udcff", "y"],
        "meta.c": 0,
    }
    manifest, problems = built(row, kinds={"image": "image"})
    assert manifest.items[0].columns == {
        "split": None, "labels": None, "text": ["x"], "meta.a": None, "meta.b": None, "meta.c": 0,
    }  # fmt: skip
    assert manifest.extra() == {"a": [None], "b": [None], "c": [0]}
    assert [(kind, scope, column, detail) for kind, scope, _, _, column, detail in problems] == [
        ("not a text", "table", "text", "4 is a int"),
        ("not a text", "table", "meta.a", "'\\udcff' is not UTF-8"),
        ("not a text", "table", "meta.b", "'\\udcff' is not UTF-8"),
    ]
    assert manifest.column("labels") is None
    assert manifest.column("meta.c") == [0]
    ignored, problems = built(row, kinds={"image": "image"}, ignore=["text", "meta.a", "meta.b", "labels"])
    assert not problems
    assert ignored.items[0].columns == {"split": None, "meta.c": 0}


def test_rows_without_ids_are_numbered_and_none_are_an_error() -> None:
    manifest, _ = built({"image": "a.png", "text": ""}, {"image": "b.png", "text": ""})
    assert [(item.line, item.id) for item in manifest.items] == [(2, "0"), (3, "1")]
    with pytest.raises(InputError, match="the manifest has no rows"):
        built()
    problems = Problems()
    problems.add("not JSON", "row")
    assert build([], KINDS, problems, root=Path()).kinds == KINDS
    for name, said in (("image", "has an encoder"), ("size", "is no column; there are id, image, text")):
        with pytest.raises(InputError, match=f'"{name}" cannot be ignored: it {said}'):
            built({"id": "a", "image": "", "text": ""}, ignore=[name])
    _, problems = built({"id": "a", "image": "", "text": "", "size": 3, "meta.x": 1})
    assert problems == [
        (
            "unknown column",
            "table",
            0,
            "",
            "size",
            "give it an encoder, call it meta.size, or ignore it (`ignore=['size']`)",
        )
    ]


def test_items_without_anything_are_dropped() -> None:
    manifest = Manifest([Item(2, "a", {"text": ["x"]}), Item(3, "b")], KINDS)
    drop_empty(manifest, problems := Problems())
    assert [item.id for item in manifest.items] == ["a"]
    assert [(p.kind, p.scope, p.line, p.id) for p in problems] == [("no modality at all", "row", 3, "b")]


@pytest.mark.parametrize(
    ("value", "texts", "wrong"),
    [
        (None, [], []),
        ('["a", " b "]', ["a", "b"], []),
        (' ["a"]', ["a"], []),
        ("[a", ["[a"], []),
        ("[1, 2]", ["[1, 2]"], []),
        ("[" * 2000, ["[" * 2000], []),
        (5, [], ["5 is a int"]),
        (["a", None, "\udcff"], ["a"], ["None is a NoneType", "'\\udcff' is not UTF-8"]),
    ],
)
def test_a_cell_as_texts(value: Any, texts: list[str], wrong: list[str]) -> None:
    assert as_texts(value) == (texts, wrong)


def test_captions_of_a_second_table(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(
        '{"id": "a", "image": "", "text": ["zero"]}\n{"id": "b", "image": "", "text": [4]}\n{"id": "a", "image": ""}\n'
    )
    (tmp_path / "c.jsonl").write_text(
        '{"id": "a", "text": ["one", "two"]}\n{"id": "b", "text": "x"}\n{"id": "z", "text": "x"}\n'
    )
    problems = Problems()
    manifest = read_manifest(tmp_path / "m.jsonl", KINDS, problems, captions=tmp_path / "c.jsonl")
    assert [item.cells.get("text") for item in manifest.items] == [["zero", "one", "two"], None]
    assert [(p.kind, p.line, p.id) for p in problems] == [
        ("caption without item", 3, "z"), ("not a text", 2, "b"), ("duplicate id", 3, "a"),
    ]  # fmt: skip
    (tmp_path / "c.jsonl").write_text('{"id": "a", "words": "x"}\n')
    with pytest.raises(InputError, match="captions needs the columns id and text; it has id, words"):
        read_manifest(tmp_path / "m.jsonl", KINDS, Problems(), captions=tmp_path / "c.jsonl")


def test_times_change_when_a_file_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    items = [Item(1, "a", {"image": str(tmp_path / "a.png"), "text": ["x"]}), Item(2, "b", {"image": "/no/such\0"})]
    manifest = Manifest(items, KINDS)
    times, digest = manifest.times(), manifest.digest()
    assert (times, digest) == (manifest.times(), manifest.digest())
    os.utime(tmp_path / "a.png", ns=(1, 1))
    assert manifest.times() != times
    assert manifest.digest() == digest
    (tmp_path / "a.png").unlink()
    assert manifest.digest() != digest
    gone = manifest.times()
    items[0].cells["image"] = "/no/such/either"
    assert manifest.times() == gone


# ---- tables


def test_lines_that_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes(b'\xef\xbb\xbfid,text\na,"x\ny"\nb\nc,x,y\n')
    rows = read_rows(tmp_path / "m.csv", problems := Problems())
    assert rows == [(3, {"id": "a", "text": "x\ny"})]
    assert [(p.kind, p.scope, p.line, p.id, p.detail) for p in problems] == [
        ("wrong number of fields", "row", 4, "b", "1 fields for 2 columns"),
        ("wrong number of fields", "row", 5, "c", "3 fields for 2 columns"),
    ]
    (tmp_path / "m.jsonl").write_text('\ufeff{"id": 1}\n\n{"id": \n[1]\n{"id": 2}')
    rows = read_rows(tmp_path / "m.jsonl", problems := Problems())
    assert rows == [(1, {"id": 1}), (5, {"id": 2})]
    assert [(p.kind, p.scope, p.line) for p in problems] == [("not JSON", "row", 3), ("not a JSON object", "row", 4)]
    assert problems.entries[1].detail == "[1]"
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "m.parquet")
    assert read_rows(tmp_path / "m.parquet", Problems()) == [(1, {"id": "a"})]
    (tmp_path / "m.TSV").write_text("id\ttext\na\tx,y\n")
    assert read_rows(tmp_path / "m.TSV", Problems()) == [(2, {"id": "a", "text": "x,y"})]
    (tmp_path / "m.csv").write_text("id,text,text\n")
    with pytest.raises(InputError, match='two columns called "text"; rename one'):
        read_rows(tmp_path / "m.csv", Problems())


def test_what_columns_hold() -> None:
    files = [{"photo": f"{i}.png", "sound": f"{i}.mp4", "film": f"{i}.mp4", "noise": f"{i}.wav"} for i in range(10)]
    rows = [
        row | {"Title": "x", "id": "a.png", "labels": "b.png", "meta.x": "c.png", "text": "t", "n": 3} for row in files
    ]
    kinds = {"photo": "image", "sound": "audio", "film": "image", "noise": "audio", "Title": "text", "text": "text"}
    assert guess_kinds(rows) == kinds
    rows[0]["photo"] = "unknown"  # nine of ten
    assert guess_kinds(rows) == kinds
    rows[1]["photo"] = 4  # eight of ten
    assert "photo" not in guess_kinds(rows)
    rows[0]["photo"] = rows[1]["photo"] = None  # cells that are empty do not count
    assert guess_kinds(rows) == kinds
    assert guess_kinds([{"photo": "", "caption": None}]) == {}
