"""Collections of audio with captions or labels: AudioCaps, Clotho, AudioSet, VGGSound and ESC-50."""

import re
from pathlib import Path
from typing import ClassVar

from calmrl.data.media.public_collections import AnnotationFolder, Entry, PublishedSplit, Publisher
from calmrl.errors import InputError
from calmrl.paper.collections.annotation_files import (
    ClipNames,
    part_of,
    read_cells,
    read_objects,
    read_table,
    read_text,
    wrong_form,
)
from calmrl.paper.collections.video import vast_entries

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


NAMES = {"train": "development", "val": "validation", "test": "evaluation"}
FILES = {  # "evaluation" has "val" in it, so a part begins a word
    part: (f"clotho_captions_{name}.csv", f"*clotho*[_.-]{part}*.csv", f"*clotho*[_.-]{part}*.json")
    for part, name in NAMES.items()
}


class Clotho(Publisher):
    """Clotho: clips of Freesound with five captions each; v2 (and v2.1) adds validation, v1 has none."""

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


FILE = ("esc50.csv",)
FOLDS = ("5", "1", "2", "3", "4")


class Esc50(Publisher):
    """ESC-50: 2,000 clips in 50 classes and five folds; the split is the fold to test on, the text the class."""

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


WHOLE = ("vggsound.csv",)
FORMS = "YouTube id, start second, label, train or test; or file name (id_000030.mp4), label"


class VggSound(Publisher):
    """VGGSound: clips of YouTube in 309 classes; the text of an item is the name of its class."""

    splits: ClassVar = {
        "all": PublishedSplit(
            {part: (f"{part}.csv", f"vggsound_{part}.csv") for part in ("train", "test")},
            {"train": 183_730, "test": 15_496},
        )
    }

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        entries = []
        for line, row in read_cells(path, notes):
            if len(row) == 4 and row[1].isdigit() and row[3] in ("train", "test"):
                video, start, label, part = row[0], int(row[1]), row[2], row[3]
            elif len(row) == 2 and _is_clip(row[0]):
                video, _, digits = row[0].rpartition(".")[0].rpartition("_")
                start, label, part = int(digits), row[1], part_of(path) or ""
            else:
                raise wrong_form(path, ",".join(row)[:80], FORMS, line=line)
            names = ClipNames(video, start, start + CLIP_SECONDS)
            values = {"id": names[0], "labels": label, "text": [label], "split": part or None}
            entries.append(Entry(line, names, values))
        return entries

    def read(self, folder: AnnotationFolder, split: str, notes: list[str]) -> list[Entry]:
        whole = folder.find(WHOLE)
        return super().read(folder, split, notes) if whole is None else self.read_file(whole, notes)


def _is_clip(name: str) -> bool:
    """Whether a file is called like id_000030.mp4."""
    stem, dot, _ = name.rpartition(".")
    return bool(dot) and stem.rpartition("_")[2].isdigit() and "_" in stem
