"""Raw items -> features, only what is new: vectors are kept by the content of the file or text they were made from."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine, LocalEngine
from calmrl.data.media.manifest import TEXT, Item
from calmrl.data.media.problems import Unreadable
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.vector_store import VectorStore, encode_files_distributed, encode_texts_distributed
from calmrl.protocols import Progress
from calmrl.search.collection import Collection, ItemRecord, OpenSource, sha256, thumbnail

Stamp = list[Any]  # SHA-256 of the content, size, time in nanoseconds
UNREADABLE = "unreadable:"  # before the SHA-256 of a file that could not be decoded
PICTURES = ("image", "video")
BATCH = 16


@dataclass
class Memory:
    """What an index already holds: stamps by item, and vectors by content."""

    stamps: Mapping[str, Mapping[str, Stamp]] = field(default_factory=dict)  # id -> modality -> stamp
    fetch: Callable[[str, list[str]], dict[str, np.ndarray]] | None = None  # (modality, SHA-256s) -> vectors


def survey(opened: OpenSource, memory: Memory | None = None) -> list[ItemRecord]:
    """What is known about every item of a folder or manifest, with the content of its files hashed.

    A file with the size and time that `memory` has for it is not read again.
    """
    assert opened.manifest is not None
    memory = memory or Memory()
    return [_known(item, opened, memory.stamps.get(item.id, {})) for item in opened.manifest.items]


def _known(item: Item, opened: OpenSource, before: Mapping[str, Stamp]) -> ItemRecord:
    paths, stamps = {}, {}
    root = Path(opened.root)
    for name, cell in item.cells.items():
        file = _text_file(item, opened) if isinstance(cell, list) else Path(cell)
        if file is not None:
            paths[name] = _relative(file, root)
        content = sha256("\0".join(cell).encode()) if isinstance(cell, list) else None
        stamps[name] = _stamp(file, content, before.get(name))
    labels, texts = item.columns.get("labels"), item.columns.get("text")
    return ItemRecord(
        item.id,
        tuple(texts or ()),
        tuple(str(label) for label in (labels if isinstance(labels, list) else [labels]) if label is not None),
        item.columns.get("split"),
        paths,
        stamps,
        {name.removeprefix("meta."): value for name, value in item.columns.items() if name.startswith("meta.")},
    )


def _text_file(item: Item, opened: OpenSource) -> Path | None:
    """The file of a text: in a folder it has the name of the item."""
    if opened.type != "folder":
        return None
    candidates = [Path(opened.root) / f"{item.id}{suffix}" for suffix in TEXT]
    return next((file for file in candidates if file.is_file()), None)


def _relative(file: Path, root: Path) -> str:
    absolute = Path(os.path.abspath(file))
    return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else str(absolute)


def _stamp(file: Path | None, content: str | None, before: Stamp | None) -> Stamp:
    if file is None:
        return [content, 0, 0]
    try:
        stat = file.stat()
        same = before is not None and before[1:] == [stat.st_size, stat.st_mtime_ns]
        key = content or (str(before[0]) if before is not None and same else file_sha256(file))
    except OSError:
        return [f"{UNREADABLE}gone", -1, -1]
    return [key, stat.st_size, stat.st_mtime_ns]


def file_sha256(file: Path) -> str:
    """Of the content of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _slow(stream)


def _slow(stream: Any) -> str:
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def encode(
    opened: OpenSource,
    known: list[ItemRecord],
    encoders: EncoderSet,
    cache: Path,
    memory: Memory | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
) -> Collection:
    """The features of items, those of new content encoded, the others from the cache or from `memory`.

    What cannot be decoded is a problem, counts as missing, and is not tried again until the file changes. Items of which
    nothing is left are left out.
    """
    assert opened.manifest is not None
    cells = {item.id: item.cells for item in opened.manifest.items}
    z: dict[str, np.ndarray] = {}
    present = np.zeros((len(known), len(encoders.modalities)), dtype=bool)
    for j, name in enumerate(encoders.modalities):
        vectors = VectorStore(cache, _store_name(name, encoders.names[name]), encoders.width(name))
        rows = [row for row, item in enumerate(known) if name in item.stamps and name in cells[item.id]]
        todo = {known[row].stamps[name][0]: cells[known[row].id][name] for row in rows}
        todo = {key: cell for key, cell in todo.items() if key not in vectors and not key.startswith(UNREADABLE)}
        _recall(vectors, name, todo, memory)
        bad = _encode_cells(encoders, name, todo, vectors, progress, engine)
        z[name] = np.full((len(known), encoders.width(name)), np.nan, np.float32)
        for row in rows:
            _mark_unreadable(known[row], name, bad, opened)
        good = [row for row in rows if known[row].stamps[name][0] in vectors]
        present[good, j] = True
        z[name][good] = vectors.get([known[row].stamps[name][0] for row in good])
    kinds = {name: encoders.kind(name) for name in encoders.modalities}
    whole = Collection(known, z, present, kinds, opened.root, dict(encoders.names), problems=opened.problems)
    whole.thumbnail = lambda row: _thumbnail(known[row], opened)
    return _without_empty(whole)


def _recall(vectors: VectorStore, name: str, todo: dict[str, Any], memory: Memory | None) -> None:
    """Move what the index has already from `todo` into the cache."""
    if memory is None or memory.fetch is None or not todo:
        return
    held = memory.fetch(name, list(todo))
    if held:
        vectors.add(list(held), np.stack(list(held.values())))
    for key in held:
        del todo[key]


def _encode_cells(
    encoders: EncoderSet,
    name: str,
    todo: dict[str, Any],
    vectors: VectorStore,
    progress: Progress | None,
    engine: Engine | None,
) -> dict[str, str]:
    """Encode cells by content; returns content -> why it cannot be decoded."""
    bad: dict[str, str] = {}
    keys, total = list(todo), len(todo)
    for first, batch in _batches(encoders, name, list(todo.values()), engine):
        good = [(keys[first + i], vector) for i, vector in enumerate(batch) if not isinstance(vector, Unreadable)]
        bad |= {keys[first + i]: f"{it.kind}: {it.detail}" for i, it in enumerate(batch) if isinstance(it, Unreadable)}
        if good:
            vectors.add([key for key, _ in good], np.stack([vector for _, vector in good]))
        if progress is not None:
            progress(first + len(batch), total, f"encode {name}")
    return bad


def _batches(
    encoders: EncoderSet, name: str, cells: list[Any], engine: Engine | None
) -> Iterator[tuple[int, list[Any]]]:
    if encoders.kind(name) == "text":
        batches = encode_texts_distributed(engine or LocalEngine(), encoders, name, cells, BATCH)
        return ((first, list(vectors)) for first, vectors in batches)
    if engine is not None:
        return encode_files_distributed(engine, encoders, name, cells, BATCH)
    return encoders.encode_files(name, cells, batch_size=BATCH)


def _mark_unreadable(item: ItemRecord, name: str, bad: Mapping[str, str], opened: OpenSource) -> None:
    """Note a file that cannot be decoded, so that it is reported, and not tried again before it changes."""
    stamps: Any = item.stamps
    key = str(stamps[name][0])
    if key in bad:
        stamps[name] = [UNREADABLE + key, *stamps[name][1:]]
    if key in bad or key.startswith(UNREADABLE):
        reason = bad.get(key, "could not be read before, and has not changed since")
        opened.problems.add("cannot be read", "cell", id=item.id, column=name, detail=reason)


def _without_empty(collection: Collection) -> Collection:
    """Items that have at least one modality; the others are problems."""
    kept = np.flatnonzero(collection.present.any(axis=1)).tolist()
    if len(kept) == len(collection):
        return collection
    for row in sorted(set(range(len(collection))) - set(kept)):
        collection.problems.add("no modality at all", "row", id=collection.known[row].id)
    return collection.take(kept)


def _thumbnail(item: ItemRecord, opened: OpenSource) -> bytes | None:
    names = [name for name in PICTURES if name in item.paths] + [name for name in item.paths if name not in PICTURES]
    assert opened.manifest is not None
    for name in names:
        if opened.manifest.kinds.get(name) == "image":
            return thumbnail(Path(opened.root) / item.paths[name])
    return None


def _store_name(modality: str, encoder: str) -> str:
    return sha256(f"{modality}\0{encoder}".encode())[:16]
