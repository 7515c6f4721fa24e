"""MSR-VTT: captions in JSON with videos and sentences, lists of training ids, and the 1k-A test with one sentence each."""

from pathlib import Path
from typing import Any, ClassVar

from calmrl.data.media.collections.annotation_folder import AnnotationFolder
from calmrl.data.media.collections.list_files import read_json, read_objects, read_table
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, part_of, wrong_form
from calmrl.data.media.collections.vast import vast_entries
from calmrl.errors import InputError

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
                raise wrong_form(path, "ids without captions", "a column sentence, or the whole folder (--collection)")
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
