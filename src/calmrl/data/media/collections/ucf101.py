"""UCF101: trainlist0N.txt and testlist0N.txt with Class/v_Class_gXX_cXX.avi; the class is written in one word."""

import re
from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.list_files import read_lines
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, wrong_form

LINE = re.compile(r"(?P<file>(?P<label>\w+)/(?P<stem>v_\w+_g\d+_c\d+)\.avi)(\s+\d+)?")
COUNTS = {"1": (9_537, 3_783), "2": (9_586, 3_734), "3": (9_624, 3_696)}


class Ucf101(Publisher):
    """UCF101: 13,320 films in 101 classes of actions, three splits; the text of an item is the name of its class."""

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
