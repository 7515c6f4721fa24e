"""AudioSet: *_segments.csv with YouTube id, start, end and labels; names of labels in class_labels_indices.csv."""

import re
from pathlib import Path
from typing import ClassVar

from calmrl.data.media.collections.annotation_folder import AnnotationFolder
from calmrl.data.media.collections.clip_names import ClipNames
from calmrl.data.media.collections.list_files import read_cells, read_table, read_text
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher, wrong_form
from calmrl.errors import InputError

CLASSES = ("class_labels_indices.csv", "audioset_class_labels_indices.csv")
TEST = ("eval_segments.csv", "audioset_eval_segments.csv")


class AudioSet(Publisher):
    """AudioSet: clips of YouTube with some of 527 labels, balanced or not; the texts of an item are the names of its labels."""

    splits: ClassVar = {
        name: PublishedSplit(
            {"train": (f"{name}_train_segments.csv", f"audioset_{name}_train_segments.csv"), "test": TEST},
            {"train": count, "test": 20_371},
        )
        for name, count in {"balanced": 22_160, "unbalanced": 2_041_789}.items()
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        file = next((path.parent / name for name in CLASSES if (path.parent / name).is_file()), None)
        if file is None:
            notes.append(
                f"no {CLASSES[0]} beside {path.name}: labels stay codes such as /m/09x0r, and there is no text"
            )
            return _segments(path, {}, notes)
        return _segments(path, _display_names(file, notes), notes)

    def read(self, folder: AnnotationFolder, split: str, notes: list[str]) -> list[Entry]:
        classes = folder.find(CLASSES)
        if classes is None:
            raise InputError(f"{folder.path} holds no {CLASSES[0]}, which has the names of the labels; put it there")
        names = _display_names(classes, notes)
        entries: list[Entry] = []
        for part, path in self.part_files(folder, split, notes).items():
            entries += [entry.in_part(part) for entry in _segments(path, names, notes)]
        unknown = {
            label for entry in entries for label in entry.values["labels"] if label.startswith(("/m/", "/t/", "/g/"))
        }
        if unknown:
            raise InputError(f"{classes} has no name for {', '.join(sorted(unknown)[:5])}; download it again")
        return entries


def _display_names(path: Path, notes: list[str]) -> dict[str, str]:
    return {row["mid"]: row["display_name"] for _, row in read_table(path, ["mid", "display_name"], notes)}


def _segments(path: Path, names: dict[str, str], notes: list[str]) -> list[Entry]:
    part = "test" if "eval" in path.name else "train"
    entries = []
    for line, row in read_cells(path, notes, comment="#"):
        if len(row) != 4 or not all(_is_number(cell) for cell in row[1:3]):
            raise wrong_form(path, ",".join(row)[:80], "YTID, start second, end second, labels", line=line)
        video, start, end = row[0], float(row[1]), float(row[2])
        codes = [code.strip() for code in row[3].split(",")]
        labels = [names.get(code, code) for code in codes]
        texts = [names[code] for code in codes if code in names]
        values = {"id": f"{video}_{start:g}", "labels": labels, "text": texts, "split": part}
        entries.append(Entry(line, ClipNames(video, start, end), values))
    _check_count(path, len(entries), notes)
    return entries


def _check_count(path: Path, rows: int, notes: list[str]) -> None:
    """The file says in a comment how many segments it has."""
    written = re.search(r"num_segs=(\d+)", read_text(path, []))
    if written and int(written[1]) != rows:
        notes.append(f"{path.name} says that it has {int(written[1]):,} segments, but holds {rows:,}")


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", cell) is not None
