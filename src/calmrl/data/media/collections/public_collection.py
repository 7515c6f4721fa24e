"""A public collection on disk: its publisher's annotation files and the media that were downloaded, as manifest rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calmrl._support.registry import lookup
from calmrl.data.media.collections.annotation_folder import AnnotationFolder
from calmrl.data.media.collections.media_files import COLLECTION_SUFFIXES, MediaFiles
from calmrl.data.media.collections.publisher import Entry, PublishedSplit, Publisher
from calmrl.data.media.collections.registry import COLLECTIONS
from calmrl.data.media.table_files import Row
from calmrl.errors import InputError

KINDS = {"vision": "image", "audio": "audio", "text": "text", "subtitle": "text"}


@dataclass(frozen=True)
class CollectionRows:
    """What was read.

    Attributes
    ----------
    rows : list of (int, dict)
        Line and columns of every item, as a manifest has them: id, split, text, labels, and a path per modality. An item
        whose file is absent keeps the path that the file should have.
    kinds : dict
        Modality -> image, audio or text.
    counts : str
        Items per part against the published numbers, for people.
    notes : list of str
        What a person should know about the files.
    """

    rows: list[Row]
    kinds: dict[str, str]
    counts: str
    notes: list[str]


@dataclass(frozen=True)
class PublicCollection:
    """Which collection it is, where it lies, and which of its splits is used.

    Parameters
    ----------
    name : str
        A name of COLLECTIONS.
    root : str or Path
        The folder that holds annotation files and media, at any depth.
    split : str, optional
        For instance "1k-a" of msrvtt; by default the first that the collection has.
    annotations : str or Path, optional
        The folder of the annotation files, if not `root`.
    media : mapping of str to (str or Path), optional
        vision or audio -> the folder of its files, for every modality to use. By default what the collection is known
        for is looked for in `root`; a modality of which there is no file at all is left out then, and a note says so.

    Examples
    --------
    >>> PublicCollection("ucf101", "data/ucf101").split_name
    '1'
    """

    name: str
    root: str | Path
    split: str | None = None
    annotations: str | Path | None = None
    media: Mapping[str, str | Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lookup(self.publisher.splits, self.split_name, f"split of {self.name}")
        for modality in self.media:
            lookup(COLLECTION_SUFFIXES, modality, "modality of media files")

    def __str__(self) -> str:
        return f"{self.name} {self.split_name} in {self.root}"

    @property
    def publisher(self) -> Publisher:
        return COLLECTIONS[self.name]()

    @property
    def split_name(self) -> str:
        return self.split if self.split is not None else next(iter(self.publisher.splits))

    @property
    def modalities(self) -> tuple[str, ...]:
        """What the items may have."""
        texts = ("text", "subtitle") if self.publisher.subtitles else ("text",)
        return (*(self.media or self.publisher.media), *texts)

    def read(self, wanted: Collection[str] | None = None) -> CollectionRows:
        """The rows of all parts of the split.

        Parameters
        ----------
        wanted : collection of str, optional
            The modalities to read. By default all that have files, text, and subtitle where there are any.
        """
        for name in wanted or ():
            if name not in self.modalities:
                raise InputError(
                    f'"{name}" is no modality of {self.name}; it has {", ".join(self.modalities)} (name a folder for '
                    "vision or audio under media to use it)"
                )
        publisher, notes = self.publisher, list[str]()
        folder = AnnotationFolder(Path(self.root if self.annotations is None else self.annotations))
        entries = publisher.read(folder, self.split_name, notes)
        files = self._files(entries, wanted, notes)
        texts = [name for name in ("text", "subtitle") if any(entry.values.get(name) for entry in entries)]
        kinds = {name: KINDS[name] for name in (*files, *texts) if wanted is None or name in wanted}
        rows: list[Row] = []
        for place, entry in enumerate(entries):
            values = {key: value for key, value in entry.values.items() if key != "subtitle" or key in kinds}
            rows.append((entry.line, values | {name: paths[place] for name, paths in files.items()}))
        return CollectionRows(rows, kinds, self._counts(entries), notes)

    def _files(self, entries: list[Entry], wanted: Collection[str] | None, notes: list[str]) -> dict[str, list[str]]:
        """Modality -> the path of every entry's file, whether it is there or not."""
        folders = self.media or dict.fromkeys(self.publisher.media, self.root)
        paths: dict[str, list[str]] = {}
        for name, folder in folders.items():
            if wanted is not None and name not in wanted:
                continue
            listing = MediaFiles(Path(folder), COLLECTION_SUFFIXES[name])
            there = [listing.find(entry.names) for entry in entries]
            if not any(there) and wanted is None and not self.media:
                notes.append(f"no file of {name} in {folder}: the collection is read without {name}")
            else:
                paths[name] = [
                    path or listing.expected(entry.names[0]) for path, entry in zip(there, entries, strict=True)
                ]
        if not paths and wanted is None and entries:
            raise InputError(
                f"no media file of {self.name} lies in {self.root}; looked for {', '.join(entries[0].names[:4])} and so "
                f"on, for {len(entries):,} items; name the folders under media"
            )
        return paths

    def _counts(self, entries: list[Entry]) -> str:
        return f"{self.name} {self.split_name}: {count_words(entries, self.publisher.splits[self.split_name])}"


def count_words(entries: list[Entry], published: PublishedSplit) -> str:
    """Items (or texts) per part, against what was published."""
    counts: Counter[Any] = Counter()
    for entry in entries:
        counts[entry.values.get("split")] += len(entry.values["text"]) if published.unit == "texts" else 1
    words = []
    for part in dict.fromkeys([*published.counts, *published.files, *counts]):
        expected = published.counts.get(part)
        gap = "" if expected is None else f" of {expected:,} published"
        words.append(f"{part or 'no part'} {counts[part]:,}{gap}")
    return f"{', '.join(words)} {published.unit}"
