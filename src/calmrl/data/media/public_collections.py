"""A public collection on disk: its publisher's annotation files and the media that were downloaded, as manifest rows.

`COLLECTIONS` names a reader for each, a subclass of `Publisher`: what its splits are, and how its files become entries.
`PublicCollection` finds the media files of these entries; `read_annotations` does so for a single annotation file.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from calmrl._support.registry import Registry, lookup
from calmrl._support.text import beginning
from calmrl.data.media.manifest import AUDIO, IMAGE, VIDEO, Row
from calmrl.errors import InputError

SUFFIXES = (".csv", ".json", ".jsonl", ".txt", ".parquet")


class AnnotationFolder:
    """All lists below a folder. Hidden folders are not entered.

    Parameters
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise InputError(f"no folder {path}; give the folder that holds the annotation files of the collection")
        self.path = path
        self.names = list(_files_below(path, SUFFIXES))

    def find(self, patterns: Iterable[str]) -> Path | None:
        """The file that matches the first pattern that any file matches, in the outermost folder that has one.

        A pattern is a name or the end of a path, or with ./ before it a file of the folder itself; case does not matter.
        """
        for pattern in patterns:
            matches = [name for name in self.names if _matches(name.lower(), pattern.lower())]
            if not matches:
                continue
            depth = min(name.count("/") for name in matches)
            outermost = [name for name in matches if name.count("/") == depth]
            if len(outermost) > 1:
                raise InputError(
                    f"{self.path} holds {pattern} more than once ({', '.join(outermost)}); name the folder of the one "
                    "to use as annotations"
                )
            return self.path / outermost[0]
        return None

    def nothing(self, wanted: Iterable[tuple[str, ...]]) -> InputError:
        """The error for a folder that lacks all of these files."""
        return InputError(
            f"{self.path} holds none of the annotation files {', '.join(names[0] for names in wanted)}; it holds "
            f"{beginning(self.names, 5) or 'no list at all'}; name the folder that has them as annotations"
        )


def _files_below(folder: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Paths relative to a folder of all files with one of the suffixes, in any folder below it that is not hidden."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        home = PurePosixPath(Path(place).relative_to(folder).as_posix())
        yield from (str(home / name) for name in sorted(files) if name.lower().endswith(suffixes))


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("./"):
        return fnmatchcase(name, pattern.removeprefix("./"))
    parts = pattern.count("/") + 1
    return fnmatchcase("/".join(name.split("/")[-parts:]), pattern)


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


READERS = "calmrl.paper.collections"
COLLECTIONS: Registry[type[Publisher]] = Registry(
    "collection",
    {
        "msrvtt": f"{READERS}.video:MsrVtt",
        "didemo": f"{READERS}.video:DiDeMo",
        "activitynet": f"{READERS}.video:ActivityNet",
        "vatex": f"{READERS}.video:Vatex",
        "audiocaps": f"{READERS}.audio:AudioCaps",
        "clotho": f"{READERS}.audio:Clotho",
        "vggsound": f"{READERS}.audio:VggSound",
        "ucf101": f"{READERS}.video:Ucf101",
        "audioset": f"{READERS}.audio:AudioSet",
        "esc50": f"{READERS}.audio:Esc50",
        "vast150k": f"{READERS}.video:Vast150K",
        "vast27m": f"{READERS}.video:Vast27M",
    },
)


VIDEO_SUFFIXES = tuple(dict.fromkeys((".mp4", ".avi", ".webm", ".mkv", *VIDEO)))
COLLECTION_SUFFIXES = {
    "vision": VIDEO_SUFFIXES,
    "audio": tuple(dict.fromkeys((*AUDIO, *VIDEO_SUFFIXES))),  # the audio track of a video counts
}


class MediaFiles:
    """Files by name, in any folder below one, read once.

    A name matches a file that is called so; else files that are called so before their suffixes, all of them
    (`x` matches x.mp4 and x.mov.mp4). Earlier suffixes are preferred, then outer folders.

    Parameters
    ----------
    folder : Path
    suffixes : sequence of str
        Those that count, the preferred ones first.
    """

    def __init__(self, folder: Path, suffixes: Sequence[str]) -> None:
        if not folder.is_dir():
            raise InputError(f"no folder {folder}")
        self.folder, self.suffixes = folder, tuple(suffixes)
        self._whole: dict[str, list[str]] = {}  # file name, and path -> paths relative to the folder
        self._bare: dict[str, list[str]] = {}  # the same without suffixes
        for name in _files_below(folder, self.suffixes):
            for key in {name, PurePosixPath(name).name}:
                self._whole.setdefault(_plain(key), []).append(name)
                self._bare.setdefault(_plain(self.bare(key)), []).append(name)

    def find(self, names: Iterable[str]) -> str | None:
        """The path of the first of these names that a file has; None if there is none."""
        for name in names:
            for matches in (self._whole.get(_plain(name), []), self._bare.get(_plain(self.bare(name)), [])):
                if matches:
                    return str((self.folder / self._best(name, matches)).absolute())
        return None

    def paths(self, entries: Iterable[Entry]) -> list[str]:
        """The path of every entry's file, or the one that it should have."""
        return [self.find(entry.names) or self.expected(entry.names[0]) for entry in entries]

    def expected(self, name: str) -> str:
        """The path that a file of this name would have."""
        file = name if name.lower().endswith(self.suffixes) else name + self.suffixes[0]
        return str((self.folder / file).absolute())

    def bare(self, name: str) -> str:
        """The name without suffixes of media: x.mov.mp4 -> x, but dQw4.12 stays."""
        while name.lower().endswith((*VIDEO_SUFFIXES, *AUDIO, *self.suffixes)):
            name = name.rpartition(".")[0]
        return name

    def _best(self, name: str, matches: list[str]) -> str:
        def rank(file: str) -> tuple[int, int, int]:
            suffix = next(place for place, suffix in enumerate(self.suffixes) if file.lower().endswith(suffix))
            return suffix, file.count("/"), len(PurePosixPath(file).name)

        ranked = sorted(matches, key=rank)
        if len(ranked) > 1 and rank(ranked[0]) == rank(ranked[1]):
            raise InputError(
                f"{self.folder} holds {name} more than once ({ranked[0]}, {ranked[1]}); name the folder of the one to use "
                "as media"
            )
        return ranked[0]


def _plain(name: str) -> str:
    """One spelling of accents: archives and file systems differ in it."""
    return unicodedata.normalize("NFC", name)


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
        counts = f"{self.name} {self.split_name}: {count_words(entries, publisher.splits[self.split_name])}"
        return CollectionRows(_rows(entries, files, kinds), kinds, counts, notes)

    def _files(self, entries: list[Entry], wanted: Collection[str] | None, notes: list[str]) -> dict[str, list[str]]:
        """Modality -> the path of every entry's file, whether it is there or not."""
        folders = self.media or dict.fromkeys(self.publisher.media, self.root)
        paths: dict[str, list[str]] = {}
        for name, folder in folders.items():
            if wanted is not None and name not in wanted:
                continue
            listing = MediaFiles(Path(folder), COLLECTION_SUFFIXES[name])
            optional = wanted is None and not self.media
            if optional and not any(listing.find(entry.names) for entry in entries):
                notes.append(f"no file of {name} in {folder}: the collection is read without {name}")
            else:
                paths[name] = listing.paths(entries)
        if not paths and wanted is None and entries:
            raise InputError(
                f"no media file of {self.name} lies in {self.root}; looked for {', '.join(entries[0].names[:4])} and so "
                f"on, for {len(entries):,} items; name the folders under media"
            )
        return paths


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


MEDIA_SUFFIXES = {
    name: (*suffixes, *IMAGE) if name == "vision" else suffixes for name, suffixes in COLLECTION_SUFFIXES.items()
}


def read_annotations(
    path: Path,
    layout: str,
    folders: Mapping[str, Path],
    wanted: Collection[str],
    notes: list[str] | None = None,
) -> list[Row]:
    """The rows of an annotation file.

    Parameters
    ----------
    path : Path
        The file.
    layout : str
        Whose file it is: a name of COLLECTIONS.
    folders : mapping of str to Path
        Where the files of vision and audio are; folders in them are searched too.
    wanted : collection of str
        The modalities that get a column.
    notes : list of str, optional
        Takes what a person should know about the file, for instance that it is not UTF-8.
    """
    publisher = COLLECTIONS[layout]()
    for name in wanted:
        if name in MEDIA_SUFFIXES and name not in folders:
            raise InputError(f"say where the files of {name} are: `media={{{name!r}: FOLDER}}`")
        if name not in (*MEDIA_SUFFIXES, "text", "subtitle"):
            raise InputError(f'layout "{layout}" has no modality "{name}"; it has vision, audio, text and subtitle')
    if not Path(path).is_file():
        raise InputError(f"no annotation file at {path}")
    entries = publisher.read_file(Path(path), [] if notes is None else notes)
    media = [name for name in wanted if name in MEDIA_SUFFIXES]
    return _rows(
        entries, {name: MediaFiles(Path(folders[name]), MEDIA_SUFFIXES[name]).paths(entries) for name in media}, wanted
    )


def _rows(entries: list[Entry], paths: Mapping[str, Sequence[str]], kept: Collection[str]) -> list[Row]:
    """Rows of a manifest from entries and the paths of their files; subtitles only if they are kept."""
    rows: list[Row] = []
    for place, entry in enumerate(entries):
        values = {key: value for key, value in entry.values.items() if key != "subtitle" or key in kept}
        rows.append((entry.line, values | {name: column[place] for name, column in paths.items()}))
    return rows
