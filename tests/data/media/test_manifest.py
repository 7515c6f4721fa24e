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


def test_captions_of_a_second_table_are_joined(tmp_path) -> None:
    (tmp_path / "m.csv").write_text("id,image\na,a.png\nb,b.png\n")
    (tmp_path / "c.csv").write_text("id,text\na,one\na,two\nz,lost\n")
    problems = Problems()
    manifest = read_manifest(tmp_path / "m.csv", KINDS, problems, captions=tmp_path / "c.csv")
    assert [item.cells.get("text") for item in manifest.items] == [["one", "two"], None]
    assert [(p.kind, p.id) for p in problems] == [("caption without item", "z")]


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
    for folder, files in {
        "v": ["v1.mp4", "v2.webm", "Archery/v_Archery_g01_c01.avi", "yt_000030.mp4"],
        "a": ["v1.wav", "v2.mp3", "yt_000030.wav", "clip.wav", "1-100.wav", "Yzz.flac"],
    }.items():
        for file in files:
            (tmp_path / folder / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / file).write_bytes(b"x")
    return {"vision": tmp_path / "v", "audio": tmp_path / "a"}


@pytest.mark.parametrize(
    ("layout", "entries", "texts"),
    [
        (
            "msrvtt",
            [
                {"video_id": "v1", "desc": "d", "subtitle": "s"},
                {"video_id": "v1", "desc": "e"},
                {"video_id": "v2", "desc": "f"},
            ],
            [["d", "e"], ["f"]],
        ),
        ("vatex", [{"video_id": "v1", "desc": ["d", "e"]}, {"video_id": "v2", "desc": ["f"]}], [["d", "e"], ["f"]]),
        ("didemo", [{"video_id": "v1", "desc": "d"}, {"video_id": "v2", "desc": "f"}], [["d"], ["f"]]),
        ("activitynet", [{"video_id": "v1.mp4", "desc": "d"}, {"video_id": "v2", "desc": "f"}], [["d"], ["f"]]),
        (
            "audiocaps",
            [{"video_id": "v1", "caption": list("abcde")}, {"video_id": "v2", "caption": ["f"]}],
            [list("abcde"), ["f"]],
        ),
        (
            "vast150k",
            [
                {"clip_id": "v1", "video_id": "no", "vast_cap": "d", "vision_cap": "vc", "subtitle": "s"},
                {"clip_id": "v2", "vast_cap": "f"},
            ],
            [["d"], ["f"]],
        ),
    ],
)
def test_vast_annotations(tmp_path, folders, layout: str, entries, texts) -> None:
    path = annotate(tmp_path, "a.json", entries)
    rows = read_annotations(path, layout, folders, ["vision", "audio", "text"])
    assert [row["text"] for _, row in rows] == texts
    assert [Path(row["vision"]).name for _, row in rows] == ["v1.mp4", "v2.webm"]
    assert [Path(row["audio"]).name for _, row in rows] == ["v1.wav", "v2.mp3"]
    assert all("subtitle" not in row for _, row in rows)
    problems = Problems()
    kinds = {"vision": "image", "audio": "audio", "text": "text"}
    assert len(build(rows, kinds, problems, root=Path()).items) == 2
    assert not problems.entries


def test_subtitles_are_a_modality_when_asked_for(tmp_path, folders) -> None:
    path = annotate(
        tmp_path, "a.json", [{"video_id": "v1", "desc": "d", "subtitle": "s"}, {"video_id": "v2", "desc": "e"}]
    )
    rows = read_annotations(path, "msrvtt", folders, ["text", "subtitle"])
    manifest = build(rows, {"text": "text", "subtitle": "text"}, Problems(), root=Path())
    assert [item.cells.get("subtitle") for item in manifest.items] == [["s"], None]


def test_a_file_that_is_not_there_stays_a_path(tmp_path, folders) -> None:
    path = annotate(tmp_path, "a.json", [{"video_id": "lost", "desc": "d"}])
    [(_, row)] = read_annotations(path, "msrvtt", folders, ["vision"])
    assert row["vision"] == str(folders["vision"] / "lost.mp4")


@pytest.mark.parametrize(
    ("layout", "name", "content", "modality", "file", "labels", "split"),
    [
        (
            "vggsound",
            "vggsound.csv",
            'yt,30,"playing piano",test\n',
            "vision",
            "yt_000030.mp4",
            "playing piano",
            "test",
        ),
        (
            "vggsound",
            "vggsound.csv",
            'yt,30,"playing piano",train\n',
            "audio",
            "yt_000030.wav",
            "playing piano",
            "train",
        ),
        (
            "ucf101",
            "testlist01.txt",
            "Archery/v_Archery_g01_c01.avi\n",
            "vision",
            "v_Archery_g01_c01.avi",
            "Archery",
            "test",
        ),
        (
            "ucf101",
            "trainlist01.txt",
            "Archery/v_Archery_g01_c01.avi 3\n",
            "vision",
            "v_Archery_g01_c01.avi",
            "Archery",
            "train",
        ),
        (
            "audioset",
            "eval_segments.csv",
            '# x\n# y\nzz, 30.000, 40.000, "/m/1,/m/2"\n',
            "audio",
            "Yzz.flac",
            ["Dog", "/m/2"],
            "test",
        ),
        (
            "esc50",
            "esc50.csv",
            "filename,fold,target,category\n1-100.wav,5,0,dog\n",
            "audio",
            "1-100.wav",
            "dog",
            "test",
        ),
        ("clotho", "c.csv", "file_name,caption_1,caption_2\nclip.wav,one,two\n", "audio", "clip.wav", None, None),
    ],
)
def test_label_lists(tmp_path, folders, layout, name, content, modality, file, labels, split) -> None:
    annotate(tmp_path, "class_labels_indices.csv", "index,mid,display_name\n0,/m/1,Dog\n")
    [(_, row)] = read_annotations(annotate(tmp_path, name, content), layout, folders, [modality])
    assert Path(row[modality]).is_file()
    assert Path(row[modality]).name == file
    assert row.get("labels") == labels
    assert row.get("split") == split
    if layout == "clotho":
        assert row["text"] == ["one", "two"]


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
