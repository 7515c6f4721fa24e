"""Every public collection from files in its publisher's layout: counts, splits, texts, labels, and the files of its items."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calmrl.data import COLLECTIONS, PublicCollection
from calmrl.errors import InputError
from tests.support import publisher_files as made
from tests.support.publisher_files import write

# name, files, split, part -> (ids, texts of the first item), files of the first modality (None: absent)
CASES = [
    ("msrvtt", made.MSRVTT, "1k-a", {"train": 3, "test": 2}, ["a car is shown", "a group is dancing"],
     ["video0.mp4", "video6513.mp4", "video7011.webm", "video9770.mp4", None]),
    ("msrvtt", made.MSRVTT, "7k", {"train": 2, "test": 2}, ["a car is shown", "a group is dancing"],
     ["video0.mp4", "video6513.mp4", "video9770.mp4", None]),
    ("msrvtt", made.MSRVTT, "full", {"train": 1, "val": 1, "test": 3}, ["a car is shown", "a group is dancing"],
     ["video0.mp4", "video6513.mp4", "video7011.webm", None, "video9770.mp4"]),
    ("didemo", made.DIDEMO, "paragraphs", {"train": 2, "test": 1}, ["first. second"],
     ["1@N_1.mov.mp4", "2@N_2.avi", f"{made.FLICKR}.m4v"]),
    ("activitynet", made.ACTIVITYNET, "val_1", {"train": 1, "test": 1}, ["A man speaks. He moves."],
     ["v_bXdq2zI1Ms0.mkv", "uqiMw7tQ1Cc.mp4"]),
    ("activitynet", made.ACTIVITYNET, "val_2", {"train": 1, "test": 1}, ["A man speaks. He moves."],
     ["v_bXdq2zI1Ms0.mkv", "uqiMw7tQ1Cc.mp4"]),
    ("vatex", made.VATEX, "public", {"train": 3, "test": 1}, ["one", "two"],
     ["Ptf_2VRj-V0.mp4", None, "aaaaaaaaaaa_21_31.mp4", "G9zN5TTuGO4_000179_000189.mp4"]),
    ("audiocaps", made.AUDIOCAPS, "v1", {"train": 1, "test": 2}, ["Idling car"],
     [f"Y{made.YT}.flac", "7fmOlUlwoNg_20_30.wav", "103542.wav"]),
    ("audiocaps", made.AUDIOCAPS, "v2", {"test": 2}, ["constant rattling noise and sharp vibrations", "a machine rattles"],
     ["7fmOlUlwoNg_20_30.wav", "103542.wav"]),
    ("clotho", made.CLOTHO, "v2", {"train": 1, "val": 1, "test": 1}, ["A muddled noise, of a station", *"bcde"],
     ["Distorted AM Radio noise.wav", "Caf\u00e9 #1.wav", "Santa Motor.wav"]),
    ("clotho", made.CLOTHO, "v1", {"train": 1, "test": 1}, ["A muddled noise, of a station", *"bcde"],
     ["Distorted AM Radio noise.wav", "Santa Motor.wav"]),
    ("vggsound", made.VGGSOUND, "all", {"test": 1, "train": 2}, ["people marching"],
     ["---g-f_I2yQ_000001.mp4", "--0PQM4-hqg_30_40.mp4", None]),
    *(("ucf101", made.UCF101, number, {"train": 2, "test": 1}, ["apply eye makeup"],
       ["v_ApplyEyeMakeup_g08_c01.avi", "v_YoYo_g08_c02.avi", "v_HandStandPushups_g01_c01.avi"]) for number in "123"),
    ("esc50", made.ESC50, "fold-5", {"train": 1, "test": 1}, ["dog"], ["1-100032-A-0.wav", "5-103415-A-14.wav"]),
    ("esc50", made.ESC50, "fold-1", {"test": 1, "train": 1}, ["dog"], ["1-100032-A-0.wav", "5-103415-A-14.wav"]),
    *(("esc50", made.ESC50, f"fold-{number}", {"train": 2}, ["dog"], ["1-100032-A-0.wav", "5-103415-A-14.wav"])
      for number in "234"),
    ("vast150k", made.VAST, "all", {"train": 1}, ["everything"], ["5K6l0PdyTCM.23.mp4"]),
]  # fmt: skip


def parts(rows) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, row in rows:
        counts[row["split"]] = counts.get(row["split"], 0) + 1
    return counts


@pytest.mark.parametrize(("name", "files", "split", "counts", "texts", "names"), CASES)
def test_a_collection_as_published(tmp_path, name, files, split, counts, texts, names) -> None:
    content = PublicCollection(name, write(tmp_path, files), split).read()
    modality = COLLECTIONS[name].media[0]
    assert parts(content.rows) == counts
    assert content.rows[0][1]["text"] == texts
    there = [Path(row[modality]) for _, row in content.rows]
    assert [path.name if path.is_file() else None for path in there] == names
    for part, count in COLLECTIONS[name].splits[split].counts.items():
        if COLLECTIONS[name].splits[split].unit == "items":
            assert f"{part} {counts.get(part, 0)} of {count:,} published" in content.counts


def test_every_collection_and_split_is_tried() -> None:
    tried = {(name, split) for name, _, split, *_ in CASES} | {("audioset", "balanced"), ("audioset", "unbalanced")}
    assert tried | {("vast27m", "all")} == {(name, split) for name in COLLECTIONS for split in COLLECTIONS[name].splits}


def test_audioset_has_the_names_of_its_labels_as_texts(tmp_path) -> None:
    content = PublicCollection("audioset", write(tmp_path, made.AUDIOSET), "balanced").read()
    assert parts(content.rows) == {"train": 2, "test": 1}
    first = content.rows[0][1]
    assert first["labels"] == first["text"] == ["Speech", "Baby cry, infant cry"]
    assert [Path(row["audio"]).name for _, row in content.rows] == [
        "Y--PJHxphWEs.wav", f"{made.YT}_0_7.5.wav", "--4gqARaEJE_0_10000.mp4",
    ]  # fmt: skip
    assert not content.notes
    test_only = PublicCollection("audioset", tmp_path, "unbalanced").read()
    assert "no train items" in test_only.notes[0]
    assert "train 0 of 2,041,789 published, test 1 of 20,371 published items" in test_only.counts


def test_audioset_that_was_cut_off_or_lacks_a_class(tmp_path) -> None:
    write(tmp_path, made.AUDIOSET | {"eval_segments.csv": '# num_segs=9\nx, 0.0, 1.0, "/m/new"\n'})
    with pytest.raises(InputError, match=r"class_labels_indices.csv has no name for /m/new"):
        PublicCollection("audioset", tmp_path).read()
    write(tmp_path, {"eval_segments.csv": '# num_segs=9\n--4gqARaEJE, 0.0, 10.0, "/m/09x0r"\n'})
    assert (
        "eval_segments.csv says that it has 9 segments, but holds 1"
        in PublicCollection("audioset", tmp_path).read().notes
    )
    (tmp_path / "class_labels_indices.csv").unlink()
    with pytest.raises(InputError, match="which has the names of the labels"):
        PublicCollection("audioset", tmp_path).read()


@pytest.mark.parametrize("name", ["vast27m.json", "vast27m_sample.jsonl", "vast27m.parquet"])
def test_a_part_of_vast27m_in_three_forms(tmp_path, name) -> None:
    write(tmp_path, made.media("5K6l0PdyTCM.23.mp4"))
    if name.endswith("parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist([made.VAST_CLIP]), tmp_path / name)
    else:
        text = json.dumps(made.VAST_CLIP)
        write(tmp_path, {name: text if name.endswith("jsonl") else f"[{text}]"})
    [(_, row)] = (content := PublicCollection("vast27m", tmp_path).read()).rows
    assert (row["text"], row["subtitle"], row["split"]) == (["everything"], "Put the dough in.", "train")
    assert row["meta.vision_cap"] == ["a", "b"]
    assert content.kinds == {"vision": "image", "audio": "audio", "text": "text", "subtitle": "text"}


def test_labels(tmp_path) -> None:
    for name, files, labels in (
        ("ucf101", made.UCF101, ["ApplyEyeMakeup", "YoYo", "HandstandPushups"]),
        ("esc50", made.ESC50, ["dog", "chirping_birds"]),
        ("vggsound", made.VGGSOUND, ["people marching", "waterfall, burbling", "playing hammond organ"]),
    ):
        rows = PublicCollection(name, write(tmp_path / name, files)).read().rows
        assert [row["labels"] for _, row in rows] == labels
        assert all(row["text"] for _, row in rows)


def test_vggsound_in_two_files(tmp_path) -> None:
    files = {"test.csv": "glLQrEijrKg_000300.mp4,playing hammond organ\n", "train.csv": "a_b-_000001.mp4,rapping\n"}
    content = PublicCollection("vggsound", write(tmp_path, files | made.media("a_b-_000001.mp4"))).read()
    assert [(row["id"], row["split"]) for _, row in content.rows] == [
        ("a_b-_000001", "train"), ("glLQrEijrKg_000300", "test"),
    ]  # fmt: skip


def test_msrvtt_in_two_caption_files(tmp_path) -> None:
    files = {key: value for key, value in made.MSRVTT.items() if key != "MSRVTT_data.json"}
    files["train_val_videodatainfo.json"] = made.msrvtt_data(
        ("video0", "train", ["a"]), ("video6513", "validate", ["b"])
    )
    write(tmp_path, files)
    with pytest.raises(InputError, match=r"MSRVTT_train.9k.csv line 4: video7011 has no sentence .*MSRVTT_data.json"):
        PublicCollection("msrvtt", tmp_path).read()
    write(tmp_path, {"test_videodatainfo.json": made.msrvtt_data(("video7011", "test", ["c"]))})
    assert [row["text"] for _, row in PublicCollection("msrvtt", tmp_path).read().rows[:3]] == [["a"], ["b"], ["c"]]
    for name in ("train_val", "test"):
        (tmp_path / f"{name}_videodatainfo.json").unlink()
    with pytest.raises(InputError, match="lists ids without captions"):
        PublicCollection("msrvtt", tmp_path).read()


def test_the_evaluation_part_of_clotho_is_not_taken_for_the_validation_part(tmp_path):
    files = {name: made.CLOTHO[name] for name in made.CLOTHO if "evaluation" in name}
    content = PublicCollection("clotho", write(tmp_path, files)).read()
    assert [columns["split"] for _, columns in content.rows] == ["test"]
    assert any(note.startswith("no val items") for note in content.notes)


ONE_FOLD = {"train": 1600, "test": 400}
COUNTS = {
    ("msrvtt", "1k-a"): {"train": 9000, "test": 1000},
    ("msrvtt", "7k"): {"train": 7010, "test": 1000},
    ("msrvtt", "full"): {"train": 6513, "val": 497, "test": 2990},
    ("didemo", "paragraphs"): {"train": 8395, "val": 1065, "test": 1004},
    ("activitynet", "val_1"): {"train": 10009, "test": 4917},
    ("activitynet", "val_2"): {"train": 10009, "test": 4885},
    ("vatex", "public"): {"train": 25991, "val": 3000, "test": 6000},
    ("audiocaps", "v1"): {"train": 49838, "val": 495, "test": 975},
    ("audiocaps", "v2"): {"train": 91256, "val": 2475, "test": 4875},
    ("clotho", "v2"): {"train": 3839, "val": 1045, "test": 1045},
    ("clotho", "v1"): {"train": 2893, "test": 1045},
    ("vggsound", "all"): {"train": 183730, "test": 15496},
    ("ucf101", "1"): {"train": 9537, "test": 3783},
    ("ucf101", "2"): {"train": 9586, "test": 3734},
    ("ucf101", "3"): {"train": 9624, "test": 3696},
    ("audioset", "balanced"): {"train": 22160, "test": 20371},
    ("audioset", "unbalanced"): {"train": 2041789, "test": 20371},
    **{("esc50", f"fold-{fold}"): ONE_FOLD for fold in range(1, 6)},
    ("vast150k", "all"): {},
    ("vast27m", "all"): {"train": 27000000},
}


def test_how_many_items_the_publishers_name():
    """A changed number would let an incomplete download pass, or call a whole one incomplete."""
    published = {(name, split): rule.counts for name in COLLECTIONS for split, rule in COLLECTIONS[name].splits.items()}
    assert published == COUNTS
