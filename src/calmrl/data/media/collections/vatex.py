"""VATEX: JSON lists with videoID (YouTube id, start, end) and ten English captions."""

from collections import Counter
from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.clip_names import ClipNames
from calmrl.data.media.collections.list_files import read_objects
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, part_of
from calmrl.data.media.collections.vast import vast_entries
from calmrl.errors import InputError


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
