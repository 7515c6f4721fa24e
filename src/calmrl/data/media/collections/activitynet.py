"""ActivityNet Captions: JSON of video -> duration, timestamps, sentences; the sentences together are the paragraph."""

from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.list_files import read_json, read_objects
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher
from calmrl.data.media.collections.vast import vast_entries
from calmrl.errors import InputError

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
