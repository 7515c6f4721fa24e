"""Manifests in every format say the same; captions, labels and splits arrive; annotation files are understood."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calmrl.data.media.manifest import build, read_manifest
from calmrl.data.media.problems import Problems
from calmrl.data.media.public_collections import COLLECTIONS, read_annotations
from calmrl.errors import InputError

KINDS = {"image": "image", "text": "text"}
ROWS = [
    {"id": "a", "split": "train", "labels": "cat", "image": "a.png", "text": ["one", "two"], "meta.place": "x"},
    {"id": "b", "split": "val", "labels": "dog", "image": "", "text": ["three"], "meta.place": "y"},
    {"id": "c", "split": "test", "labels": "cat", "image": "sub/c.png", "text": [], "meta.place": ""},
]


def write(folder: Path, suffix: str, rows=ROWS) -> Path:
    path = folder / f"m{suffix}"
    if suffix in (".csv", ".tsv"):
        with open(path, "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter="\t" if suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows([row | {"text": json.dumps(row["text"])} for row in rows])
    elif suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_all_formats_say_the_same(tmp_path, suffix: str) -> None:
    problems = Problems()
    manifest = read_manifest(write(tmp_path, suffix), KINDS, problems)
    assert not problems.entries
    assert [item.id for item in manifest.items] == ["a", "b", "c"]
    assert [item.cells for item in manifest.items] == [
        {"image": str(tmp_path / "a.png"), "text": ["one", "two"]},
        {"text": ["three"]},
        {"image": str(tmp_path / "sub/c.png")},
    ]
    assert manifest.column("split") == ["train", "val", "test"]
    assert manifest.column("labels") == ["cat", "dog", "cat"]
    assert manifest.column("text") == [["one", "two"], ["three"], None]
    assert manifest.extra() == {"place": ["x", "y", None]}


def test_columns_are_known_or_a_problem(tmp_path) -> None:
    (tmp_path / "m.csv").write_text("id,image,notes\na,a.png,x\n")
    problems = Problems()
    read_manifest(tmp_path / "m.csv", {"image": "image"}, problems)
    assert [(p.kind, p.column) for p in problems] == [("unknown column", "notes")]
    problems = Problems()
    read_manifest(tmp_path / "m.csv", {"image": "image"}, problems, ignore=["notes"])
    assert not problems.entries
    with pytest.raises(InputError, match='did you mean "image"'):
        read_manifest(tmp_path / "m.csv", {"images": "image"}, Problems())


def test_files_that_are_no_manifest(tmp_path) -> None:
    for name, content, said in (
        ("none.csv", None, "no manifest"),
        ("a.xlsx", b"x", "ends in"),
        ("two.csv", b"id,id\n1,2\n", "two columns"),
        ("quote.csv", b'id,text\n1,"open\n', "not CSV"),
        ("bad.parquet", b"PAR", "Parquet"),
        ("empty.csv", b"id,image\n", "no row"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=said):
            read_manifest(tmp_path / name, {"image": "image"}, Problems())


def test_the_digest_follows_content_not_place(tmp_path) -> None:
    digests = []
    for folder, size in (("one", 3), ("two", 3), ("three", 4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.png").write_bytes(b"x" * size)
        rows = [(1, {"id": "a", "image": "a.png"})]
        digests.append(build(rows, {"image": "image"}, Problems(), root=tmp_path / folder).digest())
    assert digests[0] == digests[1] != digests[2]


def annotate(folder: Path, name: str, content) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def folders(tmp_path):
    for file in ("v/v1.mp4", "a/v1.wav"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_bytes(b"x")
    return {"vision": tmp_path / "v", "audio": tmp_path / "a"}


def test_subtitles_are_a_modality_when_asked_for(tmp_path, folders) -> None:
    path = annotate(
        tmp_path, "a.json", [{"video_id": "v1", "desc": "d", "subtitle": "s"}, {"video_id": "v2", "desc": "e"}]
    )
    rows = read_annotations(path, "msrvtt", folders, ["text", "subtitle"])
    manifest = build(rows, {"text": "text", "subtitle": "text"}, Problems(), root=Path())
    assert [item.cells.get("subtitle") for item in manifest.items] == [["s"], None]


def test_a_file_that_is_not_there_stays_a_path(tmp_path, folders) -> None:
    entries = [{"video_id": "v1", "desc": "d", "subtitle": "s"}, {"video_id": "lost", "desc": "e"}]
    path = annotate(tmp_path, "a.json", entries)
    [(_, row), (_, lost)] = read_annotations(path, "msrvtt", folders, ["vision", "audio", "text"])
    there = {"vision": str(folders["vision"] / "v1.mp4"), "audio": str(folders["audio"] / "v1.wav")}
    assert row | there | {"id": "v1", "text": ["d"]} == row
    assert "subtitle" not in row
    assert lost["vision"] == str(folders["vision"] / "lost.mp4")


def test_annotations_that_cannot_be_used(tmp_path, folders) -> None:
    assert {"msrvtt", "clotho", "vggsound"} <= set(COLLECTIONS)
    for content, said in (("{", "not JSON"), ({"a": 1}, "list of objects"), ([{"desc": "d"}], "no id")):
        with pytest.raises(InputError, match=said):
            read_annotations(annotate(tmp_path, "a.json", content), "msrvtt", folders, ["vision"])
    good = annotate(tmp_path, "a.json", [{"video_id": "v1", "desc": "d"}])
    for layout, wanted, said in (
        ("msrvt", ["vision"], "did you mean"),
        ("msrvtt", ["smell"], "no modality"),
        ("vggsound", ["vision"], "expected YouTube id"),
    ):
        with pytest.raises(InputError, match=said):
            read_annotations(good, layout, folders, wanted)
    with pytest.raises(InputError, match=r"`media=\{'audio': FOLDER\}`"):
        read_annotations(good, "msrvtt", {}, ["audio"])
