"""DiDeMo: *_data.json with a sentence per moment; the sentences of a video together are its paragraph."""

from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.list_files import read_objects
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, part_of
from calmrl.data.media.collections.vast import vast_entries
from calmrl.errors import InputError


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
