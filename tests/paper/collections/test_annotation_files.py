"""Lists of publishers line by line: encodings, which lines count, which names are found, and what an error shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calmrl.data import COLLECTIONS, PublicCollection
from calmrl.data.media.public_collections import (
    AnnotationFolder,
    Entry,
    MediaFiles,
    PublishedSplit,
    Publisher,
    count_words,
)
from calmrl.errors import InputError
from calmrl.paper.collections.annotation_files import (
    ClipNames,
    part_of,
    read_cells,
    read_json,
    read_lines,
    read_objects,
    read_table,
    read_text,
    wrong_form,
)
from tests.support.publisher_files import AUDIOCAPS_ROWS, CLOTHO, CLOTHO_HEAD, media, msrvtt_data, write


def entries(folder: Path, layout: str, name: str, content: Any) -> tuple[list[Entry], list[str]]:
    notes: list[str] = []
    return COLLECTIONS[layout]().read_file(write(folder, {name: content}) / name, notes), notes


# ---- folders of lists


def test_lists_are_found_by_the_end_of_their_path(tmp_path) -> None:
    write(
        tmp_path,
        dict.fromkeys(["a/b/x.csv", "a/y.CSV", "y.csv", ".git/z.csv", "b/dataset/t.csv", "d/e/t.csv", "n.md"], "x"),
    )
    folder = AnnotationFolder(tmp_path)
    assert sorted(folder.names) == ["a/b/x.csv", "a/y.CSV", "b/dataset/t.csv", "d/e/t.csv", "y.csv"]
    for patterns, found in (
        (["x.csv"], "a/b/x.csv"), (["X*"], "a/b/x.csv"), (["./x.csv"], None), (["./y.csv"], "y.csv"), (["y.csv"], "y.csv"),
        (["b/x.csv"], "a/b/x.csv"), (["c/x.csv"], None), (["dataset/t.csv"], "b/dataset/t.csv"), (["no", "x.csv"], "a/b/x.csv"),
        (["z.csv"], None),
    ):  # fmt: skip
        assert folder.find(patterns) == (None if found is None else tmp_path / found), patterns
    with pytest.raises(
        InputError, match=r"holds t\.csv more than once \(b/dataset/t\.csv, d/e/t\.csv\); name the folder"
    ):
        folder.find(["t.csv"])
    wanted = str(folder.nothing([("one.csv", "other.csv"), ("two.csv",)]))
    assert "holds none of the annotation files one.csv, two.csv; it holds " in wanted
    assert "more" not in wanted
    write(tmp_path, {"z1.csv": "x", "z2.csv": "x"})
    assert str(AnnotationFolder(tmp_path).nothing([("one.csv",)])).count(" and 2 more; name the folder") == 1
    assert "it holds no list at all;" in str(AnnotationFolder(write(tmp_path / "e", {"n.md": "x"})).nothing([("a",)]))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a_dev.json", "train"),
        ("valid.json", "val"),
        ("Testing.json", "test"),
        ("train_val.json", None),
        ("evaluation2.csv", "test"),
    ],
)
def test_the_part_in_a_name(name: str, part: str | None) -> None:
    assert part_of(Path(name)) == part


def test_what_a_wrong_form_says() -> None:
    assert (
        str(wrong_form(Path("a"), "x", "y")) == "a line 1: expected y; got x; give the file as its publisher ships it"
    )
    assert (Publisher.media, Publisher.subtitles) == (("vision", "audio"), False)
    with pytest.raises(NotImplementedError):
        Publisher().read_file(Path("a"), [])


# ---- lists


def test_lines_and_cells(tmp_path) -> None:
    write(tmp_path, {"a.txt": " one\n\n two \n", "a.csv": 'a, "b, c" \n\n#x,y\n'})
    assert list(read_lines(tmp_path / "a.txt", [])) == [(1, "one"), (3, "two")]
    assert list(read_cells(tmp_path / "a.csv", [])) == [(1, ["a", "b, c"]), (3, ["#x", "y"])]
    assert list(read_cells(tmp_path / "a.csv", [], comment="#")) == [(1, ["a", "b, c"])]
    write(tmp_path, {"a.csv": f"{'h' * 100},b\n"})
    with pytest.raises(InputError, match=r"line 1: no column x, y; got h{80}; expected the columns x, b, y: give"):
        list(read_table(tmp_path / "a.csv", ["x", "b", "y"], []))
    write(tmp_path, {"a.csv": f"a,b\n1,2\n{'x' * 100}\n"})
    with pytest.raises(InputError, match=r"line 3: 1 cells for 2 columns \(x{80}\); put cells"):
        list(read_table(tmp_path / "a.csv", ["a"], []))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({str(i): i for i in range(7)}, "got an object with the keys 0, 1, 2, 3, 4; give the file"),
        ({"k" * 100: 1}, r"got an object with the keys k{56}; give"),
        ([{}, 1, "x"], "got a list that holds 1; give"),
        (["y" * 100], r"got a list that holds 'y{61}; give"),
        ('"' + "z" * 100 + '"', r"got 'z{79}; give"),
    ],
)
def test_json_that_is_no_list_of_objects(tmp_path, content: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_objects(write(tmp_path, {"a.json": content}) / "a.json", [])


def test_objects_in_lines_and_tables(tmp_path) -> None:
    write(tmp_path, {"a.jsonl": '{"a": 1}\n\n{"a": 2}\n', "b.jsonl": '{"a": 1}\n{\n', "c.jsonl": f"[{'1' * 100}]"})
    assert read_objects(tmp_path / "a.jsonl", []) == [{"a": 1}, {"a": 2}]
    with pytest.raises(InputError, match=r"b\.jsonl line 2 is not JSON"):
        read_objects(tmp_path / "b.jsonl", [])
    with pytest.raises(InputError, match=r"line 1 is not a JSON object; got \[1{79}$"):
        read_objects(tmp_path / "c.jsonl", [])
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "a.parquet")
    assert read_objects(tmp_path / "a.parquet", []) == [{"a": 1}, {"a": 2}]
    assert read_objects(write(tmp_path, {"e.json": []}) / "e.json", []) == []


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


def test_broken_lists(tmp_path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfea\x00b")
    with pytest.raises(InputError, match="starts as utf-16 but is not"):
        read_text(tmp_path / "a.csv", [])
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


# ---- readers


@pytest.mark.parametrize(
    ("layout", "name", "content", "lines"),
    [
        ("activitynet", "train.json", {"v_a": {"sentences": [" x "]}, "b": {"sentences": ["y", "z"]}},
         [(1, ["v_a", "a"], "v_a", ["x"], "train"), (2, ["b", "b"], "b", ["y z"], "train")]),
        ("activitynet", "x_val_2.json", {"a": {"sentences": []}}, [(1, ["a", "a"], "a", [""], "test")]),
        ("activitynet", "other.json", {"a": {"sentences": []}}, [(1, ["a", "a"], "a", [""], None)]),
        ("didemo", "val_data.json",
         [{"video": "a", "description": " x "}, {"video": "b", "description": "y"}, {"video": "a", "description": "z"}],
         [(1, ["a"], "a", ["x z"], "val"), (2, ["b"], "b", ["y"], "val")]),
        ("clotho", "c_validation.csv", "file_name,caption_1,caption_2,keywords\na.wav,x,,k\n",
         [(2, ["a.wav"], "a.wav", ["x"], "val")]),
        ("esc50", "e.csv", "filename,fold,category\na.wav,5,door_wood_knock\nb.wav,1,dog\n",
         [(2, ["a.wav"], "a.wav", ["door wood knock"], "test"), (3, ["b.wav"], "b.wav", ["dog"], "train")]),
        ("msrvtt", "MSRVTT_test.csv", "video_id,sentence\nvideo1video,x\n",
         [(2, ["video1video", "msr1video"], "video1video", ["x"], "test")]),
        ("msrvtt", "a.json", msrvtt_data(("video1", "train", []), ("video2", "validate", ["x"])),
         [(1, ["video1", "msr1"], "video1", [], "train"), (2, ["video2", "msr2"], "video2", ["x"], "val")]),
        ("ucf101", "trainlist01.txt", "\nBox/v_Box_g01_c01.avi 1\n",
         [(2, ["Box/v_Box_g01_c01.avi", "v_Box_g01_c01"], "v_Box_g01_c01", ["box"], "train")]),
        ("ucf101", "list.txt", "Box/v_Box_g01_c01.avi\n",
         [(1, ["Box/v_Box_g01_c01.avi", "v_Box_g01_c01"], "v_Box_g01_c01", ["box"], None)]),
        ("vast150k", "a.json",
         [{"clip_id": "", "video_id": 0, "desc": "", "caption": "x"}, {"id": "b"}, {"id": "0", "desc": ["y"]}],
         [(1, ["0"], "0", ["x", "y"], None), (2, ["b"], "b", [], None)]),
    ],
)  # fmt: skip
def test_entries_of_a_file(tmp_path, layout: str, name: str, content: Any, lines: list[tuple]) -> None:
    found, notes = entries(tmp_path, layout, name, content)
    assert [(e.line, list(e.names), e.values["id"], e.values["text"], e.values["split"]) for e in found] == lines
    assert not notes


@pytest.mark.parametrize(
    ("layout", "name", "content", "said"),
    [
        ("vatex", "a.json", [{"videoID": "x_1_b", "enCap": []}], "entry 1 .*: videoID is id_start_end, .* got x_1_b"),
        ("vatex", "a.json", [{"videoID": "x_a_2", "enCap": []}], "videoID is id_start_end"),
        ("vatex", "a.json", [{"videoID": "x", "enCap": []}], "videoID is id_start_end"),
        ("vatex", "a.json", [{"videoID": "x_1_2", "enCap": []}, {"videoID": 3, "enCap": []}], "entry 2 .* needs videoID"),
        ("vatex", "a.json", [{"videoID": "x_1_2", "enCap": []}, {}], "entry 2 .* it has nothing"),
        ("vggsound", "a.csv", "x,30,dog,train\nx,3s,dog,train\n", "line 2: expected YouTube id"),
        *(("vggsound", "a.csv", line, "line 1: expected YouTube id.*got ")
          for line in ("x_000030,dog\n", "000030.mp4,dog\n", "x_3s.mp4,dog\n", "x,30,dog\n", "x,30,dog,validate\n")),
        ("vggsound", "a.csv", f"{'x' * 100},30,dog\n", r"got x{80}; give"),
        ("audioset", "a.csv", "x,0,1\n", "line 1: expected YTID, start second"),
        ("audioset", "a.csv", "x,0,1.,y\n", "line 1: expected YTID, start second"),
        ("audioset", "a.csv", f"{'x' * 100},b,1,y\n", r"got x{80}; give"),
        ("audiocaps", "a.csv", "id,caption\n1,x\n", "a.csv line 1: no column audiocap_id, .*; got id, caption"),
        ("audiocaps", "a.csv", AUDIOCAPS_ROWS + "1,x,soon,y\n", "line 5: start_time is a number of seconds; got 'soon'"),
        ("audiocaps", "a.csv", AUDIOCAPS_ROWS + "1,x,2,y,z\n", "line 5: 5 cells for 4 columns"),
        ("clotho", "a.csv", "file,caption\n", "no column file_name, caption_1"),
        ("esc50", "a.csv", "filename,fold,category\nx.wav,6,dog\n", "line 2: fold is 1, 2, 3, 4 or 5; got '6'"),
        ("ucf101", "a.txt", f"\n{'x' * 100}\n", r"line 2: expected Class/.*; got x{80}; give"),
        ("didemo", "a.json", [{"video": "a", "description": "x"}, {"video": "a", "description": 3}], "entry 2 of"),
        ("didemo", "a.json", [{"video": "a", "description": "x"}, {"video": 3}], "entry 2 .* needs video and description"),
        ("activitynet", "a.json", {"a": {"sentences": []}, "b": {"sentences": [3]}}, r"entry 2 of .* \(b\) needs a list of"),
        ("activitynet", "a.json", {"a": {"sentences": "x"}}, "entry 1 .* needs a list of sentences"),
        ("activitynet", "a.json", {"b": ["y" * 100]}, r"got \['y{78}$"),
        ("activitynet", "a.json", '{"v_1": {"sentences": []}, "v_1": {"sentences": []}}', 'the key "v_1" twice'),
        ("msrvtt", "a.csv", "video_id\nvideo0\n", "ids without captions"),
        ("msrvtt", "a.json", {"videos": {}, "sentences": []}, "line 1: expected a JSON object with the lists videos"),
        ("msrvtt", "a.json", {"videos": [{"split": "test"}], "sentences": []}, "video 1 needs video_id and split"),
        ("msrvtt", "a.json", {"videos": [{"video_id": "v", "split": "dev"}], "sentences": []}, "video 1 needs"),
        ("msrvtt", "a.json", {"videos": [], "sentences": [{"video_id": "", "caption": "x" * 100}]}, "sentence 1 needs"),
        ("msrvtt", "a.json", {"videos": [], "sentences": [{"video_id": "v"}]}, "sentence 1 needs video_id and caption"),
        ("msrvtt", "a.json", msrvtt_data(("v", "test", []), ("v", "test", [])), r"video 2 is v again \(first: video 1\)"),
        ("vast150k", "a.json", [{"id": "a"}, {}], "entry 2 of .* got an empty object"),
        ("vast150k", "a.json", [dict.fromkeys("abcdefgh", 1)], "entry 1 of .* has no id; .* got a, b, c, d, e, f$"),
        ("vast150k", "a.json", "[1", "a.json is not JSON"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, layout: str, name: str, content: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        entries(tmp_path, layout, name, content)


def test_clips_and_their_names(tmp_path) -> None:
    found, _ = entries(tmp_path, "vggsound", "train.csv", "a_b_000030.mp4,dog\nx,7,cat,test\n")
    assert [(e.line, e.values["id"], e.values["split"], e.names[5]) for e in found] == [
        (1, "a_b_000030", "train", "a_b_30000_40000"), (2, "x_000007", "test", "x_7000_17000"),
    ]  # fmt: skip
    found, _ = entries(tmp_path, "vggsound", "all.csv", "a_b_000030.mp4,dog\n")
    assert found[0].values["split"] is None
    names = ClipNames("v", 30.0, 40.5, ["other"])
    assert list(names)[:8] == [
        "v_000030", "v_30", "v_30.000", "v_30000", "v_30_40.5", "v_30000_40500", "v_000030_000040", "v_30.000_40.500",
    ]  # fmt: skip
    assert list(names)[-3:] == ["other", "v", "Yv"]
    assert len(names) == 9 + 9 + 3
    assert list(ClipNames("v", 30.0, 40.5, whole=False))[-1].startswith("Yv_")
    found, _ = entries(
        tmp_path, "vatex", "vatex_val.json", [{"videoID": f"v_00001{i}_00002{i}", "enCap": ["x"]} for i in "01"]
    )
    assert [(e.line, "v" in list(e.names), e.values["split"]) for e in found] == [(1, False, "val"), (2, False, "val")]
    found, _ = entries(
        tmp_path, "audiocaps", "val.csv", "audiocap_id,youtube_id,start_time,caption\n7,v,30,a\n8,v,30,b\n"
    )
    [one] = found
    assert (one.line, one.values) == (2, {"id": "v_30", "text": ["a", "b"], "split": "val"})
    assert {"7", "8", "v_30_40"} <= set(one.names)


def test_audioset_files_alone(tmp_path) -> None:
    rows = '# num_segs=2\nx, 1.500, 10, "/m/1,/m/2"\ny, 0, 10, /m/1\n'
    found, notes = entries(tmp_path, "audioset", "balanced_train_segments.csv", rows)
    assert notes == [
        "no class_labels_indices.csv beside balanced_train_segments.csv: labels stay codes such as /m/09x0r, "
        "and there is no text"
    ]
    assert (found[0].line, found[0].values) == (
        2,
        {"id": "x_1.5", "labels": ["/m/1", "/m/2"], "text": [], "split": "train"},
    )
    write(tmp_path, {"audioset_class_labels_indices.csv": "index,mid,display_name\n0,/m/1,Dog\n"})
    found, notes = entries(tmp_path, "audioset", "eval_segments.csv", rows.replace("=2", "=1"))
    assert notes == ["eval_segments.csv says that it has 1 segments, but holds 2"]
    assert (found[0].values["labels"], found[0].values["text"], found[0].values["split"]) == (
        ["Dog", "/m/2"],
        ["Dog"],
        "test",
    )


# ---- the collection


def test_counts_in_words() -> None:
    published = PublishedSplit({"train": ("a",), "val": ("b",)}, {"train": 2000})
    made = [Entry(1, ["a"], {"text": ["x", "y"], "split": part}) for part in ("train", "train", "test", None)]
    assert count_words(made, published) == "train 2 of 2,000 published, val 0, test 1, no part 1 items"
    texts = PublishedSplit({}, {}, unit="texts")
    assert count_words(made, texts) == "train 4, test 2, no part 2 texts"


def test_what_is_read_of_a_collection(tmp_path) -> None:
    rows = [{"clip_id": "a", "vast_cap": "x", "subtitle": "s"}, {"clip_id": "b", "vast_cap": "y"}]
    write(tmp_path, {"vast150k.json": rows} | media("a.wav"))
    collection = PublicCollection("vast150k", tmp_path)
    assert str(collection) == f"vast150k all in {tmp_path}"
    assert collection.modalities == ("vision", "audio", "text", "subtitle")
    content = collection.read()
    assert content.kinds == {"audio": "audio", "text": "text", "subtitle": "text"}
    assert [(line, row["id"], row.get("subtitle"), Path(row["audio"]).name) for line, row in content.rows] == [
        (1, "a", "s", "a.wav"), (2, "b", None, "b.wav"),
    ]  # fmt: skip
    texts = collection.read(["text"])
    assert texts.kinds == {"text": "text"}
    assert [sorted(row) for _, row in texts.rows] == [["id", "split", "text"]] * 2
    assert not texts.notes
    named = PublicCollection("vast150k", tmp_path, media={"vision": tmp_path}).read()  # named, so none may be absent
    assert list(named.kinds) == ["vision", "text", "subtitle"]
    write(tmp_path / "e", {"vast150k.json": []})
    assert PublicCollection("vast150k", tmp_path / "e").read().rows == []


def test_names_of_files(tmp_path) -> None:
    write(tmp_path, media("a.mp4", "b/a.mp4", "c.MP4", "d.mp4.mp4", ".h/e.mp4"))
    files = MediaFiles(tmp_path, (".mp4", ".txt"))
    assert files.find(["a"]) == str(tmp_path / "a.mp4")  # the outer folder
    assert files.find(["b/a"]) == str(tmp_path / "b/a.mp4")
    assert files.find(["c"]) == str(tmp_path / "c.MP4")
    assert files.find(["d"]) == str(tmp_path / "d.mp4.mp4")
    assert files.find(["e", "none"]) is None
    assert [files.bare(name) for name in ("x.txt", "x.mov.WAV", "x.5")] == ["x", "x", "x.5"]
    assert files.expected("x.TXT") == str(tmp_path / "x.TXT")
