"""Items of files -> a collection with features: what is known is by content, so only what is new is read and encoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine
from calmrl._support.output import checksum
from calmrl.data.media.documents import words_in
from calmrl.data.media.manifest import Item, paths_of
from calmrl.data.media.problems import Unreadable
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.vector_store import VectorStore, encode_new
from calmrl.protocols import Progress
from calmrl.search.collection import NAMED, Collection, ItemRecord, sha256, thumbnail
from calmrl.search.words import name_words
from calmrl.sources import FOLDER, Source

Fingerprint = list[Any]  # SHA-256 of the content, size, time in nanoseconds
UNREADABLE = "unreadable:"  # before the SHA-256 of a file that could not be decoded
PICTURES = ("image", "video")
TEXTS = "text"  # the modality of texts in a folder


@dataclass
class Memory:
    """What an index already holds: fingerprints by item, and vectors by content."""

    fingerprints: Mapping[str, Mapping[str, Fingerprint]] = field(default_factory=dict)  # id -> modality -> fingerprint
    fetch: Callable[[str, list[str]], dict[str, np.ndarray]] | None = None  # (modality, SHA-256s) -> vectors


def names_say_something(opened: Source) -> bool:
    """Whether the names of the files of a folder can stand for texts: half of those that say something differ."""
    if opened.form != FOLDER or opened.manifest is None:
        return False
    said = [name for item in opened.manifest.items if (name := name_words(item.id)) is not None]
    return len(said) > 1 and 2 * len(set(said)) >= len(said)


def names_as_texts(opened: Source) -> None:
    """Give items of a folder that have no text their name as one; their fingerprints say so, and it is not called observed."""
    manifest = opened.manifest
    assert manifest is not None
    for item in manifest.items:
        if TEXTS not in item.cells and (name := name_words(item.id)) is not None:
            item.cells[TEXTS], item.columns[NAMED] = [name], True
    if any(TEXTS in item.cells for item in manifest.items):
        manifest.kinds = {TEXTS: TEXTS, **manifest.kinds}


def words_as_texts(opened: Source, progress: Progress | None = None) -> None:
    """Add what is written in the pictures of a folder, read by OCR, to the texts of their items."""
    manifest = opened.manifest
    assert manifest is not None
    items = [item for item in manifest.items if PICTURES[0] in item.cells]
    for done, item in enumerate(items, start=1):
        for file in paths_of(item.cells[PICTURES[0]]):
            try:
                words = words_in(Path(file))
            except (Unreadable, OSError):
                continue  # encoding it will say so
            if words:
                item.cells[TEXTS] = [*item.cells.get(TEXTS, ()), words]
                item.columns[TEXTS] = item.cells[TEXTS]
        if progress is not None:
            progress(done, len(items), "read words in pictures")
    if any(TEXTS in item.cells for item in items):
        manifest.kinds = {TEXTS: TEXTS, **manifest.kinds}


def records_of(opened: Source, memory: Memory | None = None) -> list[ItemRecord]:
    """What is known about every item of a folder or manifest, with the content of its files hashed.

    A file with the size and time that `memory` has for it is not read again.
    """
    assert opened.manifest is not None
    memory = memory or Memory()
    return [_record(item, opened, memory.fingerprints.get(item.id, {})) for item in opened.manifest.items]


def _record(item: Item, opened: Source, before: Mapping[str, Fingerprint]) -> ItemRecord:
    paths, fingerprints = {}, {}
    root = Path(opened.root)
    for name, cell in item.cells.items():
        content = sha256("\0".join(cell).encode()) if isinstance(cell, list) else None
        files = item.text_files if isinstance(cell, list) else paths_of(cell)
        for part, file in parts_of(name, files).items():
            paths[part] = _relative(Path(file), root)
            fingerprints[part] = _fingerprint(Path(file), content, before.get(part))
        if not files:
            fingerprints[name] = [content, 0, 0]
    labels, texts = item.columns.get("labels"), item.columns.get("text")
    if NAMED in item.columns:
        fingerprints[TEXTS][0] = NAMED + fingerprints[TEXTS][0]
    return ItemRecord(
        item.id,
        tuple(texts or ()),
        tuple(str(label) for label in (labels if isinstance(labels, list) else [labels]) if label is not None),
        item.columns.get("split"),
        paths,
        fingerprints,
        {name.removeprefix("meta."): value for name, value in item.columns.items() if name.startswith("meta.")},
    )


def parts_of(modality: str, files: Sequence[Any]) -> dict[str, Any]:
    """The files of a modality under its name, further ones as "image #2", "image #3", ..."""
    return {modality if n == 1 else f"{modality} #{n}": file for n, file in enumerate(files, start=1)}


def _relative(file: Path, root: Path) -> str:
    absolute = Path(os.path.abspath(file))
    return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else str(absolute)


def _fingerprint(file: Path, content: str | None, before: Fingerprint | None) -> Fingerprint:
    try:
        stat = file.stat()
        same = before is not None and before[1:] == [stat.st_size, stat.st_mtime_ns]
        key = content or (str(before[0]) if before is not None and same else checksum(file))
    except OSError:
        return [f"{UNREADABLE}gone", -1, -1]
    return [key, stat.st_size, stat.st_mtime_ns]


def encode(
    opened: Source,
    records: list[ItemRecord],
    encoders: EncoderSet,
    cache: Path,
    memory: Memory | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> Collection:
    """The features of items, those of new content encoded, the others from the cache or from `memory`.

    What cannot be decoded is a problem, counts as missing, and is not tried again until the file changes. Several files of
    one kind give the mean of their vectors. Items of which nothing is left are skipped.
    """
    assert opened.manifest is not None
    cells = {item.id: item.cells for item in opened.manifest.items}
    z: dict[str, np.ndarray] = {}
    present = np.zeros((len(records), len(encoders.modalities)), dtype=bool)
    for j, name in enumerate(encoders.modalities):
        width = encoders.width(name)
        vectors = VectorStore(cache, sha256(f"{name}\0{encoders.names[name]}".encode())[:16], width)
        parts = {row: _cells(name, cells[item.id].get(name)) for row, item in enumerate(records)}
        content = {records[row].fingerprints[n][0]: cell for row, own in parts.items() for n, cell in own.items()}
        readable = {key: cell for key, cell in content.items() if not key.startswith(UNREADABLE)}
        _recall(vectors, name, readable, memory)
        unreadable = encode_new(encoders, name, readable, vectors, progress=progress, engine=engine)
        reasons = {key: f"{error.kind}: {error.detail}" for key, error in unreadable.items()}
        z[name] = np.full((len(records), width), np.nan, np.float32)
        good: dict[int, list[str]] = {}
        for row, own in parts.items():
            for part in own:
                _mark_unreadable(records[row], part, reasons, opened)
            good[row] = [key for part in own if (key := records[row].fingerprints[part][0]) in vectors]
        having = [row for row, keys in good.items() if keys]
        present[having, j] = True
        z[name][having] = vectors.means([good[row] for row in having])
    kinds = {name: encoders.kind(name) for name in encoders.modalities}
    whole = Collection(records, z, present, kinds, opened.root, dict(encoders.names), problems=opened.problems)
    whole.thumbnail = lambda row: _thumbnail(records[row], opened)
    return _without_empty(whole)


def _cells(modality: str, cell: Any) -> dict[str, Any]:
    """What is encoded of a cell: all its texts at once, each of its files by itself."""
    if cell is None:
        return {}
    return {modality: cell} if isinstance(cell, list) else parts_of(modality, paths_of(cell))


def _recall(vectors: VectorStore, name: str, cells: Mapping[str, Any], memory: Memory | None) -> None:
    """Copy into the cache what the index has already and the cache lacks."""
    absent = [key for key in cells if key not in vectors]
    if memory is None or memory.fetch is None or not absent:
        return
    held = memory.fetch(name, absent)
    if held:
        vectors.add(list(held), np.stack(list(held.values())))


def _mark_unreadable(item: ItemRecord, name: str, bad: Mapping[str, str], opened: Source) -> None:
    """Note a file that cannot be decoded, so that it is reported, and not tried again before it changes."""
    fingerprints: Any = item.fingerprints
    key = str(fingerprints[name][0])
    if key in bad:
        fingerprints[name] = [UNREADABLE + key, *fingerprints[name][1:]]
    if key in bad or key.startswith(UNREADABLE):
        reason = bad.get(key, "could not be read before, and has not changed since")
        opened.problems.add("cannot be read", "cell", id=item.id, column=name, detail=reason)


def _without_empty(collection: Collection) -> Collection:
    """Items of which at least one modality was observed, not only their name; the others are problems."""
    named = np.array([[not item.observed(name) for name in collection.z] for item in collection.records], bool)
    kept = np.flatnonzero((collection.present & ~named.reshape(collection.present.shape)).any(axis=1)).tolist()
    if len(kept) == len(collection):
        return collection
    rest = collection.take(kept)
    for row in sorted(set(range(len(collection))) - set(kept)):
        item = collection.records[row]
        collection.problems.add("no modality at all", "row", id=item.id)
        rest.unusable |= {f"{rest.root}/{path}": list(item.fingerprints[part][1:]) for part, path in item.paths.items()}
    return rest


def _thumbnail(item: ItemRecord, opened: Source) -> bytes | None:
    names = [name for name in PICTURES if name in item.paths] + [name for name in item.paths if name not in PICTURES]
    assert opened.manifest is not None
    for name in names:
        if opened.manifest.kinds.get(name) == "image" or item.paths[name].lower().endswith(".pdf"):
            return thumbnail(Path(opened.root) / item.paths[name])
    return None
