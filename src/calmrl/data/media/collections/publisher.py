"""What the reader of a publisher's files looks like: splits, published counts, and annotation files -> entries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from calmrl.data.media.collections.annotation_folder import AnnotationFolder
from calmrl.errors import InputError

PARTS = {
    "train": ("train", "training", "development", "dev"),
    "val": ("val", "validation", "valid", "validate"),
    "test": ("test", "testing", "evaluation", "eval"),
}


@dataclass(frozen=True)
class Entry:
    """One item of an annotation file.

    Attributes
    ----------
    line : int
        Where it stands: a line, or in JSON the number of the entry.
    names : sequence of str
        What its files may be called, with or without suffix; the most usual name first.
    values : dict
        The columns of its manifest row: id, text, and perhaps labels, split, subtitle and meta.NAME.
    """

    line: int
    names: Sequence[str]
    values: dict[str, Any]

    def in_part(self, part: str) -> Entry:
        """The same entry, in this part of the split."""
        return replace(self, values=self.values | {"split": part})


@dataclass(frozen=True)
class PublishedSplit:
    """A split as papers use it: which file holds which part, and how much of it was published.

    Attributes
    ----------
    files : dict
        Part (train, val, test) -> names of its annotation file, the publisher's own first; `*` stands for anything.
    counts : dict
        Part -> how many were published; a part that is not there has no published count.
    unit : str
        What `counts` counts: "items" or "texts".
    """

    files: Mapping[str, tuple[str, ...]]
    counts: Mapping[str, int] = field(default_factory=dict)
    unit: str = "items"


class Publisher:
    """The files of one publisher; a subclass per collection.

    `splits` names the splits, the usual one first; `media` the modalities that the collection is known to have as files.
    """

    splits: ClassVar[dict[str, PublishedSplit]]
    media: ClassVar[tuple[str, ...]] = ("vision", "audio")
    subtitles: ClassVar[bool] = False

    def read_file(self, path: Path, notes: list[str]) -> list[Entry]:
        """The entries of one annotation file; `notes` takes what a person should know about it."""
        raise NotImplementedError

    def read(self, folder: AnnotationFolder, split: str, notes: list[str]) -> list[Entry]:
        """The entries of all parts of a split. A part whose file is absent is a note; without any part it is an error."""
        entries: list[Entry] = []
        for part, path in self.part_files(folder, split, notes).items():
            entries += [entry.in_part(part) for entry in self.read_file(path, notes)]
        return entries

    def part_files(self, folder: AnnotationFolder, split: str, notes: list[str]) -> dict[str, Path]:
        """Part -> its annotation file, for those that are there."""
        wanted = self.splits[split].files
        files = {part: path for part, names in wanted.items() if (path := folder.find(names)) is not None}
        if not files:
            raise folder.nothing(wanted.values())
        names = {part: PurePosixPath(wanted[part][0]).name for part in wanted if part not in files}
        notes += [f"no {part} items: {folder.path} holds no {name}" for part, name in names.items()]
        return files


def part_of(path: Path) -> str | None:
    """The part of a split that the name of a file says, if it says exactly one: msrvtt_train.json -> train."""
    words = set(re.split(r"[^a-z]+", path.stem.lower()))
    parts = [part for part, names in PARTS.items() if words & set(names)]
    return parts[0] if len(parts) == 1 else None


def wrong_form(path: Path, got: str, expected: str, *, line: int = 1) -> InputError:
    """An annotation file that is not what its collection publishes."""
    return InputError(f"{path} line {line}: expected {expected}; got {got}; give the file as its publisher ships it")
