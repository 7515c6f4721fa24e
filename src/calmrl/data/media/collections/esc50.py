"""ESC-50: one CSV with file name, fold and category; the split says which fold is the test part."""

from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.annotation_folder import AnnotationFolder
from calmrl.data.media.collections.list_files import read_table
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher
from calmrl.errors import InputError

FILE = ("esc50.csv",)
FOLDS = ("5", "1", "2", "3", "4")


class Esc50(Publisher):
    """ESC-50: 2,000 sounds in 50 classes and five folds; the split is the fold to test on, the text the class."""

    media = ("audio",)
    splits: ClassVar = {f"fold-{fold}": PublishedSplit({"test": FILE}, {"train": 1_600, "test": 400}) for fold in FOLDS}

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        return self._of_fold(path, FOLDS[0], notes)

    def read(self, folder: AnnotationFolder, split: str, notes: list[str]) -> list[Entry]:
        path = folder.find(FILE)
        if path is None:
            raise folder.nothing([FILE])
        return self._of_fold(path, split.removeprefix("fold-"), notes)

    def _of_fold(self, path: Path, test: str, notes: list[str]) -> list[Entry]:
        entries = []
        for line, row in read_table(path, ["filename", "fold", "category"], notes):
            if row["fold"] not in FOLDS:
                raise InputError(f"{path} line {line}: fold is 1, 2, 3, 4 or 5; got {row['fold']!r}")
            values = {
                "id": row["filename"],
                "labels": row["category"],
                "text": [row["category"].replace("_", " ")],
                "split": "test" if row["fold"] == test else "train",
                "meta.fold": row["fold"],
            }
            entries.append(Entry(line, [row["filename"]], values))
        return entries
