"""Collections of videos: MSR-VTT, DiDeMo, ActivityNet, VATEX, UCF101, VAST-27M and its sample VAST-150K.

The lists of the public code of VAST, GRAM and PMRL (`vast_entries`) are understood for all but UCF101.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from calmrl.data.media.public_collections import AnnotationFolder, Entry, PublishedSplit, Publisher
from calmrl.errors import InputError
from calmrl.paper.collections.annotation_files import (
    ClipNames,
    part_of,
    read_json,
    read_lines,
    read_objects,
    read_table,
    wrong_form,
)

ID_KEYS = ("clip_id", "video_id", "image_id", "image", "id")
TEXT_KEYS = ("desc", "caption", "vast_cap")
KEPT = ("vision_cap", "audio_cap")


class Vast150K(Publisher):
    """A sample of VAST-27M (VAST-150K): clips with one caption of everything, subtitles, and captions of vision and audio."""

    subtitles = True
    splits: ClassVar = {"all": PublishedSplit({"train": ("vast150k.json", "*vast*150k*.json", "*vast*150k*.jsonl")})}

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        return vast_entries(path, read_objects(path, notes))


class Vast27M(Vast150K):
    """VAST-27M, or any part of it: JSON list, JSON lines or Parquet with clip_id, vast_cap, subtitle, vision_cap, audio_cap."""

    names: ClassVar = ("vast27m.json", "*vast*27m*.json", "*vast*27m*.jsonl", "*vast*27m*.parquet", "annotations.json")
    splits: ClassVar = {"all": PublishedSplit({"train": names}, {"train": 27_000_000})}


def vast_entries(path: Path, objects: Iterable[dict[str, Any]]) -> list[Entry]:
    """An id, a text or a list of texts, perhaps a subtitle per object; objects of one id are joined.

    The name of the file gives the part of the split, unless the objects have one.
    """
    part = part_of(path)
    joined: dict[str, Entry] = {}
    for number, item in enumerate(objects, start=1):
        key = next((key for key in ID_KEYS if item.get(key) not in (None, "")), None)
        if key is None:
            got = ", ".join(map(str, list(item)[:6])) or "an empty object"
            raise InputError(f"entry {number} of {path} has no id; it needs one of {', '.join(ID_KEYS)}; got {got}")
        name = str(item[key])
        texts: Any = next((item[key] for key in TEXT_KEYS if item.get(key)), [])
        entry = joined.setdefault(name, Entry(number, [name], {"id": name, "text": [], "split": part}))
        entry.values["text"] += texts if isinstance(texts, list) else [texts]
        entry.values.update({key: item[key] for key in ("subtitle", "split") if item.get(key)})
        entry.values.update({f"meta.{key}": item[key] for key in KEPT if item.get(key)})
    return list(joined.values())


TRAIN = ("train.json", "*activitynet*train*.json", "descs_ret_train.json")


class ActivityNet(Publisher):
    """ActivityNet Captions: videos with a paragraph each; val_1 (or val_2) is the test part, as in retrieval papers."""

    splits: ClassVar = {
        "val_1": PublishedSplit(
            {
                "train": TRAIN,
                "test": ("val_1.json", "*activitynet*val_1*.json", "*activitynet*test*.json", "descs_ret_test.json"),
            },
            {"train": 10_009, "test": 4_917},
        ),
        "val_2": PublishedSplit(
            {"train": TRAIN, "test": ("val_2.json", "*activitynet*val_2*.json")}, {"train": 10_009, "test": 4_885}
        ),
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        content = read_json(path, notes)
        if not isinstance(content, dict):
            return vast_entries(path, read_objects(path, notes))
        part = "train" if "train" in path.stem else "test" if path.stem[-5:] in ("val_1", "val_2") else None
        entries = []
        for number, (name, video) in enumerate(content.items(), start=1):
            lines = video.get("sentences") if isinstance(video, dict) else None
            if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
                raise InputError(f"entry {number} of {path} ({name}) needs a list of sentences; got {str(video)[:80]}")
            paragraph = " ".join(line.strip() for line in lines)
            names = [name, name.removeprefix("v_")]
            entries.append(Entry(number, names, {"id": name, "text": [paragraph], "split": part}))
        return entries


class DiDeMo(Publisher):
    """DiDeMo: 10,464 Flickr videos; the sentences of a video are joined to one paragraph, in the order of the file."""

    splits: ClassVar = {
        "paragraphs": PublishedSplit(
            {
                part: (f"{part}_data.json", f"*didemo*{part}*.json", f"descs_ret_{part}.json")
                for part in ("train", "val", "test")
            },
            {"train": 8_395, "val": 1_065, "test": 1_004},
        )
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        objects = read_objects(path, notes)
        if not objects or "description" not in objects[0]:
            return vast_entries(path, objects)
        sentences: dict[str, list[str]] = {}
        first: dict[str, int] = {}
        for number, item in enumerate(objects, start=1):
            if not isinstance(item.get("video"), str) or not isinstance(item.get("description"), str):
                raise InputError(f"entry {number} of {path} needs video and description; got {str(item)[:80]}")
            first.setdefault(item["video"], number)
            sentences.setdefault(item["video"], []).append(item["description"].strip())
        return [
            Entry(first[name], [name], {"id": name, "text": [" ".join(lines)], "split": part_of(path)})
            for name, lines in sentences.items()
        ]


TEST = ("MSRVTT_JSFUSION_test.csv", "*msrvtt_test*1k*.json", "*msrvtt_test*.json", "descs_ret_test.json")
LISTS = {
    "1k-a": ("MSRVTT_train.9k.csv", "*msrvtt_train*9k*.json", "*msrvtt_train*.json", "descs_ret_train.json"),
    "7k": ("MSRVTT_train.7k.csv", "*msrvtt_train*7k*.json"),
}
CAPTIONS = (
    ("MSRVTT_data.json", "videodatainfo_2017*.json"),
    ("train_val_videodatainfo.json",),
    ("test_videodatainfo.json",),
)
SPLITS = {"train": "train", "validate": "val", "test": "test"}


class MsrVtt(Publisher):
    """MSR-VTT: 10,000 videos with 20 captions each; 1k-a is the test that retrieval papers use."""

    splits: ClassVar = {
        "1k-a": PublishedSplit({"train": LISTS["1k-a"], "test": TEST}, {"train": 9_000, "test": 1_000}),
        "7k": PublishedSplit({"train": LISTS["7k"], "test": TEST}, {"train": 7_010, "test": 1_000}),
        "full": PublishedSplit({"train": CAPTIONS[0]}, {"train": 6_513, "val": 497, "test": 2_990}),
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        if path.suffix == ".csv":
            rows = list(read_table(path, ["video_id"], notes))
            if rows and "sentence" not in rows[0][1]:
                raise wrong_form(
                    path, "ids without captions", "a column sentence, or the whole folder of the collection"
                )
            return [_entry(line, row["video_id"], [row["sentence"]], part_of(path)) for line, row in rows]
        content = read_json(path, notes)
        if isinstance(content, dict) and "sentences" in content:
            videos, texts = _videos(path, content)
            return [_entry(place, name, texts.get(name, []), part) for name, (place, part) in videos.items()]
        return vast_entries(path, read_objects(path, notes))

    def read(self, folder: AnnotationFolder, split: str, notes: list[str]) -> list[Entry]:
        if split == "full":
            return self._full(folder, notes)
        listed = folder.find(LISTS[split])
        if listed is None or listed.suffix != ".csv":
            return super().read(folder, split, notes)
        test = folder.find(TEST)
        if test is None:
            notes.append(f"no test items: {folder.path} holds no {TEST[0]}")
        held_out = [] if test is None else [entry.in_part("test") for entry in self.read_file(test, notes)]
        return [*self._listed(listed, folder, notes), *held_out]

    def _full(self, folder: AnnotationFolder, notes: list[str]) -> list[Entry]:
        files = _caption_files(folder)
        if not files:
            raise folder.nothing(CAPTIONS)
        return [entry for path in files for entry in self.read_file(path, notes)]

    def _listed(self, path: Path, folder: AnnotationFolder, notes: list[str]) -> list[Entry]:
        """The training ids of a list, with the sentences of the JSON files."""
        files = _caption_files(folder)
        if not files:
            raise InputError(
                f"{path.name} lists ids without captions; put MSRVTT_data.json, or train_val_videodatainfo.json and "
                f"test_videodatainfo.json, into {folder.path}"
            )
        texts: dict[str, list[str]] = {}
        for file in files:
            texts |= _videos(file, read_json(file, notes))[1]
        rows = list(read_table(path, ["video_id"], notes))
        silent = [(line, row["video_id"]) for line, row in rows if not texts.get(row["video_id"])]
        if silent:
            raise InputError(
                f"{path} line {silent[0][0]}: {silent[0][1]} has no sentence in {', '.join(f.name for f in files)} (nor have "
                f"{len(silent) - 1} others of {len(rows)}); add the other part of the captions, or MSRVTT_data.json"
            )
        return [_entry(line, row["video_id"], texts[row["video_id"]], "train") for line, row in rows]


def _caption_files(folder: AnnotationFolder) -> list[Path]:
    """The file of all captions, or else those of its two parts that are there."""
    whole, *parts = (folder.find(names) for names in CAPTIONS)
    return [whole] if whole is not None else [path for path in parts if path is not None]


def _videos(path: Path, content: Any) -> tuple[dict[str, tuple[int, str]], dict[str, list[str]]]:
    """(video -> its place in the file and its part of the split, video -> its sentences in the order of the file)"""
    if not isinstance(content, dict) or not all(isinstance(content.get(key), list) for key in ("videos", "sentences")):
        raise wrong_form(path, "something else", "a JSON object with the lists videos and sentences")
    videos: dict[str, tuple[int, str]] = {}
    for place, video in enumerate(content["videos"], start=1):
        name, part = str(video.get("video_id", "")), SPLITS.get(str(video.get("split", "")))
        if not name or part is None:
            raise InputError(f"{path}: video {place} needs video_id and split (train, validate or test); got {video}")
        if name in videos:
            raise InputError(f"{path}: video {place} is {name} again (first: video {videos[name][0]}); keep one")
        videos[name] = place, part
    texts: dict[str, list[str]] = {}
    for place, sentence in enumerate(content["sentences"], start=1):
        if not sentence.get("video_id") or not isinstance(sentence.get("caption"), str):
            raise InputError(f"{path}: sentence {place} needs video_id and caption; got {str(sentence)[:80]}")
        texts.setdefault(str(sentence["video_id"]), []).append(sentence["caption"])
    return videos, texts


def _entry(line: int, name: str, texts: list[str], part: str | None) -> Entry:
    return Entry(line, [name, name.replace("video", "msr", 1)], {"id": name, "text": list(texts), "split": part})


class Vatex(Publisher):
    """VATEX: clips of Kinetics with ten English captions each; the public test is the test part, Chinese is not used."""

    splits: ClassVar = {
        "public": PublishedSplit(
            {
                "train": ("vatex_training_v1.0.json", "*vatex*train*.json", "descs_ret_train.json"),
                "val": ("vatex_validation_v1.0.json", "*vatex*val*.json"),
                "test": (
                    "vatex_public_test_english_v1.1.json",
                    "*vatex*public*test*.json",
                    "*vatex_test*.json",
                    "descs_ret_test.json",
                ),
            },
            {"train": 25_991, "val": 3_000, "test": 6_000},
        )
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        objects = read_objects(path, notes)
        if not objects or "videoID" not in objects[0]:
            return vast_entries(path, objects)
        videos = Counter(str(item.get("videoID", "")).rsplit("_", 2)[0] for item in objects)
        entries = []
        for number, item in enumerate(objects, start=1):
            name, texts = item.get("videoID"), item.get("enCap")
            if not isinstance(name, str) or not isinstance(texts, list):
                got = ", ".join(map(str, item))
                raise InputError(f"entry {number} of {path} needs videoID and a list enCap; it has {got or 'nothing'}")
            video, start, end = _span(path, number, name)
            names = ClipNames(video, start, end, [name], whole=videos[video] == 1)
            entries.append(Entry(number, names, {"id": name, "text": list(texts), "split": part_of(path)}))
        return entries


def _span(path: Path, number: int, name: str) -> tuple[str, float, float]:
    parts = name.rsplit("_", 2)
    if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
        raise InputError(f"entry {number} of {path}: videoID is id_start_end, for instance x_000010_000020; got {name}")
    return parts[0], int(parts[1]), int(parts[2])


LINE = re.compile(r"(?P<file>(?P<label>\w+)/(?P<stem>v_\w+_g\d+_c\d+)\.avi)(\s+\d+)?")
COUNTS = {"1": (9_537, 3_783), "2": (9_586, 3_734), "3": (9_624, 3_696)}


class Ucf101(Publisher):
    """UCF101: 13,320 videos in 101 classes of actions, three splits; the text of an item is the name of its class."""

    media = ("vision",)
    splits: ClassVar = {
        number: PublishedSplit(
            {part: (f"{part}list0{number}.txt", f"ucf101_{part}list0{number}.txt") for part in ("train", "test")},
            {"train": train, "test": test},
        )
        for number, (train, test) in COUNTS.items()
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        part = next((part for part in ("train", "test") if f"{part}list" in path.name.lower()), None)
        entries = []
        for number, line in read_lines(path, notes):
            match = LINE.fullmatch(line)
            if match is None:
                raise wrong_form(path, line[:80], "Class/v_Class_g01_c01.avi, perhaps with a number", line=number)
            file, label, stem = match["file"], match["label"], match["stem"]
            values = {"id": stem, "labels": label, "text": [class_words(label)], "split": part}
            entries.append(Entry(number, [file, stem], values))
        return entries


def class_words(label: str) -> str:
    """ApplyEyeMakeup -> apply eye makeup; TaiChi -> tai chi; YoYo -> yo yo"""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", label)).lower()
