"""AudioCaps, both versions: CSV with a caption per line; lines of one clip are joined."""

from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.clip_names import ClipNames
from calmrl.data.media.collections.list_files import read_objects, read_table
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, part_of
from calmrl.data.media.collections.vast import vast_entries
from calmrl.errors import InputError

COLUMNS = ("audiocap_id", "youtube_id", "start_time", "caption")
CLIP_SECONDS = 10
PARTS = ("train", "val", "test")


class AudioCaps(Publisher):
    """AudioCaps: clips of AudioSet, one caption each in train, five in val and test; v1 (2019) or v2 (2025)."""

    media = ("audio",)
    splits: ClassVar = {
        "v1": PublishedSplit(
            {
                part: (f"dataset/{part}.csv", f"csv_files_v1/{part}.csv", f"audiocaps_{part}.csv", f"./{part}.csv",
                       f"audiocaps_{part}*.json", f"descs_ret_{part}.json")
                for part in PARTS
            },
            {"train": 49_838, "val": 495, "test": 975},
        ),
        "v2": PublishedSplit(
            {
                part: (f"dataset2.0/{part}.csv", f"csv_files_v2/{part}.csv", f"audiocaps2_{part}.csv", f"./{part}.csv")
                for part in PARTS
            },
            {"train": 91_256, "val": 2_475, "test": 4_875},
            unit="texts",
        ),
    }  # fmt: skip

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        if path.suffix != ".csv":
            return vast_entries(path, read_objects(path, notes))
        joined: dict[str, Entry] = {}
        others: dict[str, list[str]] = {}  # clip -> numbers of its captions, which some downloaders use as names
        for line, row in read_table(path, COLUMNS, notes):
            if not row["start_time"].isdigit():
                raise InputError(f"{path} line {line}: start_time is a number of seconds; got {row['start_time']!r}")
            video, start = row["youtube_id"], int(row["start_time"])
            name = f"{video}_{start}"
            others.setdefault(name, []).append(row["audiocap_id"])
            names = ClipNames(video, start, start + CLIP_SECONDS, others[name])
            entry = joined.setdefault(name, Entry(line, names, {"id": name, "text": [], "split": part_of(path)}))
            entry.values["text"].append(row["caption"])
        return list(joined.values())
