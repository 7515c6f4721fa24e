"""The index of a source: made, or opened and brought up to date where files have changed."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calmrl._support.filesystem import locked
from calmrl._support.output import replaced_directory
from calmrl._support.places import holds_index, index_of, is_remote
from calmrl._support.text import listed, plural
from calmrl.data.media.folder import CLOSED
from calmrl.encoders.registry import DEFAULTS, default_name
from calmrl.errors import InputError
from calmrl.protocols import Progress
from calmrl.search.build import OCR, is_index
from calmrl.search.index import Index
from calmrl.search.syntax import quote
from calmrl.search.update import Change, removed_items
from calmrl.sources import DATASET, FOLDER, MANIFEST, Source, open_source

NOUNS = {"image": "picture", "sound": "sound", "text": "text", "video": "video"}


def index(
    source: Any,
    out: str | Path,
    encoders: Mapping[str, str] | None = None,
    *,
    report: Callable[[str], None] | None = None,
    **options: Any,
) -> Index:
    """Encode, align in closed form, and write a searchable table.

    Parameters
    ----------
    source : str, Path, FeatureSet or dict
        A folder, a manifest, features, or the name of a bundled data set.
    out : str or Path
        The index to write. Call it again to continue where it stopped.
    encoders, **options
        See `calmrl.Index.build`.
    report : callable, optional
        Gets sentences for people: problems, items, patterns, recall to expect, what cannot be searched.

    Examples
    --------
    >>> index("photos", "photos.index")  # doctest: +SKIP
    """
    made = Index.build(source, out, encoders, **options)
    if report is not None:
        problems, asked = made.layout["problems"], made.layout["source"]
        if asked["type"] == FOLDER and any(line.endswith(" more") for line in problems):
            problems = [*problems, f"all of them: {shlex.join(['calmrl', 'check', asked['path'], '--all'])}"]
        for line in [*problems, *made.summary()]:
            report(line)
    return made


@dataclass(frozen=True)
class OpenedIndex:
    """An index, and what was done to have it: "the index is made", "3 added, 1 removed", or "nothing has changed".

    Examples
    --------
    >>> open_index("photos").done  # doctest: +SKIP
    'nothing has changed'
    """

    index: Index
    done: str


def open_index(
    source: str | Path,
    index: str | Path | None = None,
    *,
    ocr: bool = False,
    progress: Progress | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> OpenedIndex:
    """The index of a folder of files (or a table of files, features, a bundled data set), ready to be searched.

    Nothing is written beside the files: without `index`, it is kept in the user's cache (`calmrl._support.places.index_of`).
    Where it is there already, only what is new or changed is encoded, and what is gone is removed; not where more is gone than
    is left or a folder cannot be read, since a disk may be missing. Items that `remove` took out stay out. Where files
    of another kind have come, it is made again; not if it holds other sources too or was made with other encoders or a model.

    Parameters
    ----------
    source : str or Path
        What to search; an index is opened as it is.
    index : str or Path, optional
        Where the index is, or is to be made.
    ocr : bool
        Whether words in pictures are read too; an index that was made without is made again. Once read, they stay.
    progress : callable, optional
        Called with (done so far, of how many, what is being done).
    report : callable, optional
        Gets sentences for people: how much there is, where the index is, what to expect of it.

    Examples
    --------
    >>> open_index("photos").index.search(text="a dog by the sea")  # doctest: +SKIP
    """
    if is_remote(source) or holds_index(source):
        if index is not None:
            raise InputError(f"{source} is an index itself, so `index` says nothing; leave it out")
        return OpenedIndex(Index.open(source), "nothing was compared")
    opened = open_source(source)
    report(f"{source}: {contents(opened)}")
    place = index_of(source) if index is None else index
    if not (is_index(place) if is_remote(place) else holds_index(place)):
        report(f"making its index in {place}; the files stay as they are")
        return OpenedIndex(_made(opened, place, ocr, progress, report), "the index is made")
    report(f"its index is {place}")
    there = Index.open(place)
    if there.layout["source"] != {"type": opened.form, "path": opened.root}:
        raise InputError(f"{place} is the index of {there.layout['source']['path']}; choose another name with `index`")
    new = [name for name in opened.modalities if name not in there.layout["modalities"]]
    reads = ocr and not there.layout.get(OCR)
    if (new or reads) and _is_plain(there, opened):
        why = f"{listed(new)} came after it was made" if new else "it was made without words in pictures"
        return OpenedIndex(_made_again(opened, there, why, ocr, progress, report), "the index is made again")
    if reads:
        raise InputError(f"{place} was made without words in pictures; make another one with calmrl index --ocr")
    if opened.form == FOLDER and not there.folder_changes():
        return OpenedIndex(there, "nothing has changed")
    change = there.add(opened, progress=progress)
    if change.gone and _may_prune(change, opened, index is None):
        change.removed, change.gone = there.add(opened, prune=True, refit=False).removed, []
    for line in change.lines():
        report(line)
    counts = {"added": change.added, "changed": change.changed, "removed": change.removed}
    parts = [f"{len(ids)} {what}" for what, ids in counts.items() if ids]
    if new:
        parts.append(f"{listed(new)} left out: {place} has no place for it; make another one with calmrl index")
    if change.gone:
        line = shlex.join(["calmrl", "add", str(place), str(source), "--prune"])
        parts.append(f"{len(change.gone)} gone but kept, in case they come back; remove them with: {line}")
    return OpenedIndex(there, ", ".join(parts) or "nothing has changed")


@dataclass(frozen=True)
class CachedIndex:
    """An index in the user's cache: where it is, what it was made from, whether that is still there, and its size."""

    path: Path
    source: str
    gone: bool
    size: int  # bytes


def cached_indexes() -> list[CachedIndex]:
    """The indexes that `open_index` keeps in the user's cache, unfinished ones among them.

    Examples
    --------
    >>> [kept.source for kept in cached_indexes() if kept.gone]  # doctest: +SKIP
    ['/media/stick/photos']
    """
    folder = index_of("any").parent
    kept = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not path.is_dir():
            continue
        try:
            source = Index.open(path).layout["source"]
            name, gone = str(source["path"]), source["type"] != DATASET and not Path(source["path"]).exists()
        except InputError:
            name, gone = "unfinished, or damaged", False
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        kept.append(CachedIndex(path, name, gone, size))
    return kept


def remove_gone(report: Callable[[str], None] = lambda line: None) -> int:
    """Remove indexes of the user's cache whose source is gone; returns how many."""
    gone = [kept for kept in cached_indexes() if kept.gone]
    for kept in gone:
        with locked(kept.path):
            shutil.rmtree(kept.path)
        report(f"removed {kept.path} ({kept.source}, {kept.size / 1e6:.1f} MB)")
    return len(gone)


def _may_prune(change: Change, opened: Source, own: bool) -> bool:
    """Whether what is gone was taken away; not where a disk may be missing, nor where other tables have the same folder."""
    left = len(change.added) + len(change.changed) + change.unchanged
    closed = tuple(f"{problem.detail}/" for problem in opened.problems if problem.kind == CLOSED)
    hidden = any(id.startswith(closed) for id in change.gone)
    return len(change.gone) <= left and not hidden and (own or opened.form != MANIFEST)


def _is_plain(there: Index, opened: Source) -> bool:
    """Whether it holds nothing but this source, and was made as this function makes it."""
    fit = there.layout.get("fit")
    if fit is None or fit["relevant"] is not None or there.rows(["id"], where=f"root != {quote(opened.root)}"):
        return False
    entries = {name: entry for name, entry in there.layout["modalities"].items() if entry["kind"] in DEFAULTS}
    return all(entry["encoder"] == default_name(name, entry["kind"]) for name, entry in entries.items())


def _made(
    opened: Source, place: str | Path, ocr: bool, progress: Progress | None, report: Callable[[str], None]
) -> Index:
    return index(opened, place, ocr=ocr, progress=progress, report=report)


def _made_again(
    opened: Source, there: Index, why: str, ocr: bool, progress: Progress | None, report: Callable[[str], None]
) -> Index:
    if is_remote(there.path):
        raise InputError(f"{there.path}: {why}; make it again with calmrl index, elsewhere")
    report(f"{why}, so it is made again")
    with locked(Path(there.path)), replaced_directory(there.path) as draft:
        on_purpose = removed_items(there.path).get(opened.root, {})
        reads = ocr or bool(there.layout.get(OCR))
        made = _made(opened, draft, reads, progress, report)
        made.remove(row["id"] for row in made.rows(["id"]) if row["id"] in on_purpose)
    return Index.open(there.path)


def contents(opened: Source) -> str:
    """ "600 items: 598 pictures and 40 texts" """
    if opened.manifest is None:
        present: Any = opened.features.present if opened.features is not None else ()
        return plural(len(present), "item")
    items = opened.manifest.items
    counts = {name: sum(name in item.cells for item in items) for name in opened.modalities}
    parts = [plural(n, NOUNS[name]) if name in NOUNS else f"{n} {name}" for name, n in counts.items() if n]
    return f"{plural(len(items), 'item')}: {listed(parts)}"
