"""What is put into an index: items with their features, and what else is known about them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.media.images import open_image
from calmrl.data.media.manifest import modality_in
from calmrl.data.media.problems import Problems, Unreadable
from calmrl.data.media.streams import read_frames
from calmrl.encoders.registry import ENCODERS, is_path, load_encoder, spec_of
from calmrl.errors import InputError, need
from calmrl.sources import Source

STANDARD = ("id", "split", "labels", "text")
SIDE = 192  # pixels, of the longer side of a thumbnail
QUALITY = 80
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
        Files of items of which nothing could be read, as "root/file" -> [size, time].
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

    def __len__(self) -> int:
        return len(self.records)

    def take(self, rows: list[int]) -> Collection:
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
    split, labels, text = (_values(features.meta, name) for name in ("split", "labels", "text"))
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


def _values(table: pa.Table, name: str) -> list[Any]:
    return table[name].to_pylist() if name in table.column_names else [None] * table.num_rows


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
