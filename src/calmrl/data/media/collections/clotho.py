"""Clotho v1 and v2: CSV with a file name and five captions per line."""

from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.list_files import read_objects, read_table
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, part_of
from calmrl.data.media.collections.vast import vast_entries

NAMES = {"train": "development", "val": "validation", "test": "evaluation"}
FILES = {  # "evaluation" has "val" in it, so a part begins a word
    part: (f"clotho_captions_{name}.csv", f"*clotho*[_.-]{part}*.csv", f"*clotho*[_.-]{part}*.json")
    for part, name in NAMES.items()
}


class Clotho(Publisher):
    """Clotho: sounds of Freesound with five captions each; v2 (and v2.1) adds validation, v1 has none."""

    media = ("audio",)
    splits: ClassVar = {
        "v2": PublishedSplit(FILES, {"train": 3_839, "val": 1_045, "test": 1_045}),
        "v1": PublishedSplit({part: FILES[part] for part in ("train", "test")}, {"train": 2_893, "test": 1_045}),
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        if path.suffix != ".csv":
            return vast_entries(path, read_objects(path, notes))
        return [
            Entry(line, [row["file_name"]], {"id": row["file_name"], "text": _captions(row), "split": part_of(path)})
            for line, row in read_table(path, ["file_name", "caption_1"], notes)
        ]


def _captions(row: dict[str, str]) -> list[str]:
    return [text for column, text in row.items() if column.startswith("caption_") and text]
