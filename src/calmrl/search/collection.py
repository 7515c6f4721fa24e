"""What is put into an index: items with their features, and what else is known about them.

Features are taken as they are. Of files, what is known is known by their content, so that only what is new is read and encoded.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine
from calmrl._support.output import checksum
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.media.documents import words_in
from calmrl.data.media.images import open_image
from calmrl.data.media.manifest import Item, modality_in, paths_of
from calmrl.data.media.problems import Problems, Unreadable
from calmrl.data.media.streams import read_frames
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.encoders.registry import ENCODERS, is_path, load_encoder, spec_of
from calmrl.encoders.vector_store import VectorStore, encode_new
from calmrl.errors import InputError, need
from calmrl.protocols import Progress
from calmrl.search.words import name_words
from calmrl.sources import FOLDER, Source

STANDARD = ("id", "split", "labels", "text")
SIDE = 192  # pixels, of the longer side of a thumbnail
QUALITY = 80
SEGMENTS = "segments"  # of the layout: seconds of the segments of videos, if it has any; and the column that holds them
REPLACED = "replaced_by"  # of a modality of the layout: whose vectors it holds, by an encoder that is being replaced
UNUSABLE = "unusable"  # of the layout: `Collection.unusable` of all that was added
NAMED = "name:"  # before the SHA-256 of a text that is the name of a file


@dataclass(frozen=True)
class ItemRecord:
    """What is known about an item besides its features."""

    id: str
    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    split: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)  # modality -> file, relative to the collection
    fingerprints: Mapping[str, Any] = field(default_factory=dict)  # modality -> [SHA-256, size, time] of what it has
    columns: Mapping[str, Any] = field(default_factory=dict)

    def observed(self, modality: str) -> bool:
        """Whether what it has of a modality is more than its name."""
        return not str(self.fingerprints.get(modality, [""])[0]).startswith(NAMED)

    def digest(self) -> str:
        """Changes with everything but the times of files."""
        content = {name: fingerprint[0] for name, fingerprint in self.fingerprints.items()}
        parts = [self.id, self.texts, self.labels, self.split, dict(self.paths), content, dict(self.columns)]
        return sha256(json.dumps(parts, default=str, sort_keys=True).encode())


@dataclass
class Collection:
    """Items with features.

    Attributes
    ----------
    records : list of ItemRecord
    z : dict of str to ndarray (N, width)
        Rows of missing modalities are not read.
    present : ndarray of bool (N, k)
    kinds : dict of str to str
        Modality -> "text", "image", "audio", or "vector" where no encoder is known.
    root : str
        The folder that paths are relative to, or the name of the features.
    encoders : dict of str to str
        Modality -> name of its encoder, as far as they are known.
    thumbnail : function
        Number of an item -> a small image, or None.
    groups : sequence, optional
        Which items are siblings.
    unusable : dict of str to list
        Files of items of which nothing could be read, and texts that could not, as "root/file" -> [size, time].
    segments : list of dict
        Per item: `segments_key` -> segments of its video (n, 2 + width), rows of begin, end (seconds) and vector; empty where
        no item has any.
    """

    records: list[ItemRecord]
    z: dict[str, np.ndarray]
    present: np.ndarray
    kinds: dict[str, str]
    root: str
    encoders: dict[str, str] = field(default_factory=dict)
    thumbnail: Callable[[int], bytes | None] = lambda row: None
    groups: list[Any] | None = None
    problems: Problems = field(default_factory=Problems)
    unusable: dict[str, list[int]] = field(default_factory=dict)
    segments: list[dict[str, np.ndarray]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def has(self, name: str) -> np.ndarray:
        """Which items have a modality, (N,)."""
        if name not in self.z:
            return np.zeros(len(self), bool)
        return np.asarray(self.present[:, list(self.z).index(name)])

    def take(self, rows: Sequence[int]) -> Collection:
        """Some of the items."""
        index = np.asarray(rows, dtype=np.int64)
        return Collection(
            [self.records[row] for row in rows],
            {name: np.asarray(values[index]) for name, values in self.z.items()},
            np.asarray(self.present[index]),
            self.kinds,
            self.root,
            self.encoders,
            lambda row: self.thumbnail(rows[row]),
            None if self.groups is None else [self.groups[row] for row in rows],
            self.problems,
            segments=[self.segments[row] for row in rows] if self.segments else [],
        )


def from_features(opened: Source, groups: str | None = None) -> Collection:
    """Features as a collection. Rows that have nothing are refused; imputed blocks count as missing, as they are."""
    features, indexing = opened.features, opened.indexing
    assert features is not None
    present = np.asarray(features.present)
    if not len(present):
        raise InputError("the features have no rows, so there is nothing to search in")
    if not present.any(axis=1).all():
        empty = features.ids[np.flatnonzero(~present.any(axis=1))[0]]
        raise InputError(f"item {empty!r} has no modality at all; leave such rows out")
    _check_values(features.z, present)
    encoders = {name: encoder for name, encoder in indexing.encoders.items() if name in features.z}
    encoders |= _encoder_names(features)
    records = _records(features, present)

    def thumbnail(row: int) -> bytes | None:
        if "thumbnail" in features.meta.column_names:
            return features.meta["thumbnail"][row].as_py()
        return indexing.thumbnail(
            records[row].id, [name for name, has in zip(features.z, present[row], strict=True) if has]
        )

    return Collection(
        records,
        features.z,
        present,
        {name: _kind(encoders.get(name)) for name in features.z},
        opened.root,
        encoders,
        thumbnail,
        _groups(features, groups),
    )


def _records(features: FeatureSet, present: np.ndarray) -> list[ItemRecord]:
    extra = [name for name in features.meta.column_names if name not in (*STANDARD, "thumbnail")]
    columns = {name: features.meta[name].to_pylist() for name in extra}
    known, unknown = features.meta.column_names, [None] * features.meta.num_rows
    split, labels, text = (
        features.meta[name].to_pylist() if name in known else unknown for name in ("split", "labels", "text")
    )
    names = list(features.z)
    return [
        ItemRecord(
            id=str(name),
            texts=_texts(text[row]),
            labels=_texts(labels[row]),
            split=None if split[row] is None else str(split[row]),
            fingerprints={
                names[j]: [sha256(np.ascontiguousarray(features.z[names[j]][row]).tobytes()), 0, 0]
                for j in np.flatnonzero(present[row])
            },
            columns={name: values[row] for name, values in columns.items()},
        )
        for row, name in enumerate(features.ids)
    ]


def _texts(value: Any) -> tuple[str, ...]:
    """None, a text, a number or a list of them, as texts."""
    if value is None:
        return ()
    return tuple(str(part) for part in (value if isinstance(value, (list, tuple)) else [value]) if part is not None)


def _check_values(z: Mapping[str, np.ndarray], present: np.ndarray) -> None:
    """Observed rows must be finite in float32, which the index stores."""
    for j, (name, values) in enumerate(z.items()):
        rows = np.flatnonzero(present[:, j])
        for block in np.array_split(rows, max(1, len(rows) // 4096)):
            with np.errstate(over="ignore"):
                good = np.isfinite(np.asarray(values[block]).astype(np.float32)).all(axis=1)
            if not good.all():
                raise InputError(
                    f"{name}: row {block[~good][0]} is marked as present but has NaN or values too large for float32; "
                    "mark it as missing, or divide the modality by a constant"
                )


def _encoder_names(features: FeatureSet) -> dict[str, str]:
    """Modality -> encoder, where the features say how they were made."""
    names = features.info.get("encoders") or {}
    return {name: str(encoder) for name, encoder in names.items() if name in features.z and isinstance(encoder, str)}


def described(features: FeatureSet) -> dict[str, Any] | None:
    """The description of the encoders that made features, where `calmrl extract` recorded it."""
    description = features.info.get("encoding")
    return (
        description
        if isinstance(description, dict) and set(description.get("encoders", ())) == set(features.z)
        else None
    )


def _kind(encoder: str | None) -> str:
    name = "" if encoder is None else encoder.partition("@")[0]
    return ENCODERS[name].kind if name in ENCODERS else "vector"


def _groups(features: FeatureSet, groups: str | None) -> list[Any] | None:
    """The column that says which items are siblings; "group" by default, if there is one."""
    if groups is not None:
        return list(features.column(groups))
    return list(features.column("group")) if "group" in features.meta.column_names else None


def sha256(content: bytes) -> str:
    """As hex."""
    return hashlib.sha256(content).hexdigest()


def kinds_of(encoders: Mapping[str, str]) -> dict[str, str]:
    """Modality -> what its encoder takes."""
    return {
        name: load_encoder(encoder).kind if is_path(encoder) else spec_of(encoder).kind
        for name, encoder in encoders.items()
    }


def thumbnail(path: str | Path) -> bytes | None:
    """An image or video as a small WebP; None if it cannot be read."""
    try:
        if modality_in(path) == "video":
            frames, _ = read_frames(path, 1)
            picture = need("PIL.Image", "media", "reading video frames").fromarray(frames[0])
        else:
            picture = open_image(path)
    except Unreadable:
        return None
    return small(picture)


def small(picture: Any) -> bytes:
    """An image of Pillow as WebP of at most SIDE pixels."""
    copy = picture.convert("RGB")
    copy.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    copy.save(out, "WEBP", quality=QUALITY)
    return out.getvalue()


Fingerprint = list[Any]  # SHA-256 of the content, size, time in nanoseconds
# (modality, SHA-256s) -> the vector of what is known of these, and its segments, as in `Collection`
Held = Callable[[str, list[str]], dict[str, tuple[np.ndarray, np.ndarray | None]]]
UNREADABLE = "unreadable:"  # before the SHA-256 of a file that could not be decoded
PICTURES = ("image", "video")
TEXTS = "text"  # the modality of texts in a folder


def segments_key(modality: str, encoder: str) -> str:
    """The name of segments of a video by an encoder."""
    return f"{modality}={encoder}"


def has_videos(opened: Source) -> bool:
    """Whether items have videos of which frames are encoded."""
    assert opened.manifest is not None
    pictured = [name for name, kind in opened.manifest.kinds.items() if kind == "image"]
    cells = (item.cells.get(name) for item in opened.manifest.items for name in pictured)
    return any(modality_in(file) == "video" for cell in cells if cell is not None for file in paths_of(cell)[:1])


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


def records_of(opened: Source, before: Mapping[str, Mapping[str, Fingerprint]] | None = None) -> list[ItemRecord]:
    """What is known about every item of a folder or manifest, with the content of its files hashed.

    A file that had the same size and time `before` (id -> modality -> fingerprint) is not read again.
    """
    assert opened.manifest is not None
    return [_record(item, opened, (before or {}).get(item.id, {})) for item in opened.manifest.items]


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


def unread_texts(opened: Source) -> dict[str, list[int]]:
    """Text files of a folder that gave their items no text, as in `Collection.unusable`."""
    items = () if opened.manifest is None else opened.manifest.items
    files = [Path(file) for item in items if TEXTS not in item.cells for file in item.text_files]
    stats = {f"{opened.root}/{_relative(file, Path(opened.root))}": file.stat() for file in files if file.exists()}
    return {file: [stat.st_size, stat.st_mtime_ns] for file, stat in stats.items()}


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
    held: Held = lambda name, keys: {},
    progress: Progress | None = None,
    engine: Engine | None = None,
    segments: float = 0.0,
) -> Collection:
    """The features of items, those of new content encoded, the others from the cache or, by content, from what an index holds.

    What cannot be decoded is a problem, counts as missing, and is not tried again until the file changes. Several files of
    one kind give the mean of their vectors. Items of which nothing is left are skipped. Videos also give vectors of segments of
    so many seconds, the first of several files; 0: none.
    """
    assert opened.manifest is not None
    cells = {item.id: item.cells for item in opened.manifest.items}
    z: dict[str, np.ndarray] = {}
    present = np.zeros((len(records), len(encoders.modalities)), dtype=bool)
    parts_of_video: list[dict[str, np.ndarray]] = [{} for _ in records]
    for j, name in enumerate(encoders.modalities):
        width = encoders.width(name)
        made_by = f"{name}\0{encoders.names[name]}"
        cut = None
        if segments and encoders.kind(name) == "image":
            made_by += f"\0{segments}"
            cut = segments, VectorStore(cache, sha256(f"{made_by}\0parts".encode())[:16], width + 2)
        vectors = VectorStore(cache, sha256(made_by.encode())[:16], width)
        parts = {row: _cells(name, cells[item.id].get(name)) for row, item in enumerate(records)}
        content = {records[row].fingerprints[n][0]: cell for row, own in parts.items() for n, cell in own.items()}
        readable = {key: cell for key, cell in content.items() if not key.startswith(UNREADABLE)}
        absent = [key for key in readable if key not in vectors]
        if absent and (known := held(name, absent)):
            for key, (_, rows) in known.items():
                if cut is not None and rows is not None:
                    cut[1].add_segments(key, rows[:, :2], rows[:, 2:])
            vectors.add(list(known), np.stack([vector for vector, _ in known.values()]))
        unreadable = encode_new(encoders, name, readable, vectors, progress=progress, engine=engine, segments=cut)
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
        if cut is not None:
            for row in having:
                if len(found := cut[1].segments(good[row][0])):
                    parts_of_video[row][segments_key(name, encoders.names[name])] = found
    kinds = {name: encoders.kind(name) for name in encoders.modalities}
    whole = Collection(records, z, present, kinds, opened.root, dict(encoders.names), problems=opened.problems)
    whole.unusable = unread_texts(opened)
    whole.thumbnail = lambda row: _thumbnail_of(records[row], opened)
    whole.segments = parts_of_video if any(parts_of_video) else []
    return _without_empty(whole)


def _cells(modality: str, cell: Any) -> dict[str, Any]:
    """What is encoded of a cell: all its texts at once, each of its files by itself."""
    if cell is None:
        return {}
    return {modality: cell} if isinstance(cell, list) else parts_of(modality, paths_of(cell))


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
    rest.unusable = dict(collection.unusable)
    for row in sorted(set(range(len(collection))) - set(kept)):
        item = collection.records[row]
        collection.problems.add("no modality at all", "row", id=item.id)
        rest.unusable |= {f"{rest.root}/{path}": list(item.fingerprints[part][1:]) for part, path in item.paths.items()}
    return rest


def _thumbnail_of(item: ItemRecord, opened: Source) -> bytes | None:
    names = [name for name in PICTURES if name in item.paths] + [name for name in item.paths if name not in PICTURES]
    assert opened.manifest is not None
    for name in names:
        if opened.manifest.kinds.get(name) == "image" or item.paths[name].lower().endswith(".pdf"):
            return thumbnail(Path(opened.root) / item.paths[name])
    return None
