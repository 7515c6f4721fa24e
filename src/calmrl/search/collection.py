"""What is put into an index: items with their features, and what else is known about them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.parsing import parsing
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.media.folder import read_folder
from calmrl.data.media.images import open_image
from calmrl.data.media.manifest import KINDS, VIDEO, Manifest, modality_of, read_manifest, read_rows
from calmrl.data.media.problems import Problems, Unreadable
from calmrl.data.media.streams import read_frames
from calmrl.datasets.registry import DATASETS, load_dataset
from calmrl.encoders.registry import is_path, load_encoder, spec_of
from calmrl.errors import InputError, need

STANDARD = ("id", "split", "labels", "text")


@dataclass(frozen=True)
class ItemRecord:
    """What is known about an item besides its features."""

    id: str
    texts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    split: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)  # modality -> file, relative to the collection
    stamps: Mapping[str, Any] = field(default_factory=dict)  # modality -> [SHA-256, size, time] of what it has
    columns: Mapping[str, Any] = field(default_factory=dict)

    def fingerprint(self) -> str:
        """Changes with everything but the times of files."""
        content = {name: stamp[0] for name, stamp in self.stamps.items()}
        parts = [self.id, self.texts, self.labels, self.split, dict(self.paths), content, dict(self.columns)]
        return sha256(json.dumps(parts, default=str, sort_keys=True).encode())


@dataclass
class Collection:
    """Items with features.

    Attributes
    ----------
    known : list of Known
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
        Number of an item -> a small picture, or None.
    groups : sequence, optional
        Which items are siblings.
    """

    known: list[ItemRecord]
    z: dict[str, np.ndarray]
    present: np.ndarray
    kinds: dict[str, str]
    root: str
    encoders: dict[str, str] = field(default_factory=dict)
    thumbnail: Callable[[int], bytes | None] = lambda row: None
    groups: list[Any] | None = None
    problems: Problems = field(default_factory=Problems)

    def __len__(self) -> int:
        return len(self.known)

    def take(self, rows: list[int]) -> Collection:
        """Some of the items."""
        index = np.asarray(rows, dtype=np.int64)
        return Collection(
            [self.known[row] for row in rows],
            {name: np.asarray(values[index]) for name, values in self.z.items()},
            np.asarray(self.present[index]),
            self.kinds,
            self.root,
            self.encoders,
            lambda row: self.thumbnail(rows[row]),
            None if self.groups is None else [self.groups[row] for row in rows],
            self.problems,
        )


def from_features(features: FeatureSet, root: str, groups: str | None = None) -> Collection:
    """Features as a collection. Rows that have nothing are refused; imputed blocks count as missing, as they are."""
    present = np.asarray(features.present)
    if not len(present):
        raise InputError("the features have no rows, so there is nothing to search in")
    if not present.any(axis=1).all():
        empty = features.ids[np.flatnonzero(~present.any(axis=1))[0]]
        raise InputError(f"item {empty!r} has no modality at all; leave such rows out")
    _check_values(features.z, present)
    encoders = _encoder_names(features)
    return Collection(
        _known(features, present),
        features.z,
        present,
        {name: _kind(encoders.get(name)) for name in features.z},
        root,
        encoders,
        _thumbnails(features),
        _groups(features, groups),
    )


def _known(features: FeatureSet, present: np.ndarray) -> list[ItemRecord]:
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
            stamps={
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
    from calmrl.encoders.registry import ENCODERS

    name = "" if encoder is None else encoder.partition("@")[0]
    return ENCODERS[name].kind if name in ENCODERS else "vector"


def _thumbnails(features: FeatureSet) -> Callable[[int], bytes | None]:
    if "thumbnail" not in features.meta.column_names:
        return lambda row: None
    column = features.meta["thumbnail"]
    return lambda row: column[row].as_py()


def _groups(features: FeatureSet, groups: str | None) -> list[Any] | None:
    """The column that says which items are siblings; "group" by default, if there is one."""
    if groups is not None:
        return list(features.column(groups))
    return list(features.column("group")) if "group" in features.meta.column_names else None


def sha256(content: bytes) -> str:
    """As hex."""
    return hashlib.sha256(content).hexdigest()


TABLES = (".csv", ".tsv", ".jsonl")
FEATURES = (".npz", ".safetensors")


@dataclass
class OpenSource:
    """A source that was recognised: `features` or `manifest`, what it is called, and the folder of its files."""

    type: str  # "folder", "manifest", "features" or "dataset"
    root: str  # the folder that paths are relative to, or what else tells sources apart
    features: FeatureSet | None = None
    manifest: Manifest | None = None
    problems: Problems = field(default_factory=Problems)

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of what its items may have."""
        return tuple(self.manifest.kinds if self.manifest is not None else self.features.names if self.features else ())


def open_source(source: Any, kinds: Mapping[str, str] | None = None, some: bool = False) -> OpenSource:
    """Recognise a source.

    Parameters
    ----------
    source : str, Path, FeatureSet or dict
        A folder of files, a manifest, a feature directory or file, the name of a bundled data set, features in memory;
        or what this function returned.
    kinds : mapping of str to str, optional
        Modality -> "text", "image" or "audio", where it is known; otherwise columns of a manifest are guessed.
    some : bool
        Whether a manifest may lack some of these modalities.
    """
    if isinstance(source, OpenSource):
        return source
    if isinstance(source, FeatureSet):
        return OpenSource("features", str(source.path or source.name or "features"), features=source)
    if isinstance(source, Mapping):
        return OpenSource("features", "features", features=FeatureSet(dict(source)))
    path = Path(source)
    if not path.exists():
        if str(source) in DATASETS:
            return OpenSource("dataset", str(source), features=_bundled(str(source)))
        raise InputError(
            f"{source} is neither a file or folder nor a bundled data set ({', '.join(DATASETS)}); check the name"
        )
    if path.is_dir():
        if (path / "features.json").exists() or any(path.glob("*.npy")):
            return OpenSource("features", str(path.resolve()), features=open_features(path))
        problems = Problems()
        return OpenSource("folder", str(path.resolve()), manifest=read_folder(path, problems), problems=problems)
    if path.suffix in FEATURES or (path.suffix == ".parquet" and _holds_vectors(path)):
        return OpenSource("features", str(path.resolve()), features=open_features(path))
    if path.suffix not in (*TABLES, ".parquet"):
        raise InputError(
            f"{path} has suffix {path.suffix!r}; an index is made from a folder, a table of files ({', '.join(TABLES)}, "
            f".parquet), or features (a directory, {', '.join(FEATURES)})"
        )
    problems = Problems()
    if kinds and some:
        columns = {name for _, row in read_rows(path, Problems()) for name in row}
        kinds = {name: kind for name, kind in kinds.items() if name in columns}
    manifest = read_manifest(path, kinds or guess_kinds(path), problems)
    return OpenSource("manifest", str(path.resolve().parent), manifest=manifest, problems=problems)


def _bundled(name: str) -> FeatureSet:
    """A bundled data set with features as the encoders gave them, so that new files can be compared with them."""
    raw = {"standardize": False} if "standardize" in DATASETS.signature(name).parameters else {}
    return load_dataset(name, **raw)


def _holds_vectors(path: Path) -> bool:
    """Whether a Parquet file has columns of numbers lists, as features have."""
    with parsing(path, "Parquet"):
        types = [field.type for field in pq.read_schema(path)]
    return any(
        (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
        and pa.types.is_floating(kind.value_type)
        for kind in types
    )


def guess_kinds(path: Path) -> dict[str, str]:
    """Modality -> kind, from the columns of a manifest: file names by their suffix, and the column `text`."""
    kinds: dict[str, str] = {}
    for _, row in read_rows(path, Problems()):
        for name, value in row.items():
            if name in kinds or name in ("id", "split", "labels") or str(name).startswith("meta.") or not value:
                continue
            held = modality_of(value) if isinstance(value, str) else None
            if name == "text":
                kinds[name] = "text"
            elif held is not None:
                kinds[name] = KINDS[held]
    if not kinds:
        raise InputError(
            f"{path} has no column of files and no column text; name encoders: `encoders={{COLUMN: NAME}}`"
        )
    return kinds


def kinds_of(encoders: Mapping[str, str]) -> dict[str, str]:
    """Modality -> what its encoder takes."""
    return {
        name: load_encoder(encoder).kind if is_path(encoder) else spec_of(encoder).kind
        for name, encoder in encoders.items()
    }


ENCODERS_OF = {
    "stamps": {"image": "efficientnet_lite0", "text": "minilm", "speech": "whisper_base", "sound": "yamnet"},
    "emoji": {
        "image": "efficientnet_lite0",
        "drawing": "efficientnet_lite0",
        "text": "minilm",
        "keywords": "minilm",
        "speech": "whisper_base",
    },
}


def with_thumbnails(opened: OpenSource, collection: Collection) -> Collection:
    """The pictures of the emoji, which lie beside their features."""
    if opened.type == "dataset" and opened.root == "emoji":
        from calmrl.datasets.emoji import PICTURES, thumbnail

        def picture(row: int) -> bytes | None:
            has = dict(zip(collection.z, collection.present[row], strict=True))
            name = next((name for name in PICTURES if has[name]), None)
            return None if name is None else thumbnail(collection.known[row].id, name)

        collection.thumbnail = picture
    return collection


def known_vector(dataset: str, modality: str, value: Any) -> np.ndarray | None:
    """The vector of a word for which the data set has one, so that it can be searched without an encoder."""
    if dataset != "emoji" or modality not in ("text", "keywords") or find_spec("calmrl.datasets.emoji") is None:
        return None
    from calmrl.datasets.emoji import query_vectors

    return query_vectors().get(value) if isinstance(value, str) else None


def reduced(dataset: str, encoder: str, vectors: np.ndarray) -> np.ndarray:
    """Vectors of an encoder in the form that the data set stores."""
    if dataset != "emoji":
        return vectors
    from calmrl.datasets.emoji import REDUCED, reduce_features

    return reduce_features(encoder, vectors) if encoder in REDUCED else vectors


SIDE = 192  # pixels, of the longer side
QUALITY = 80


def thumbnail(path: str | Path) -> bytes | None:
    """A picture or film as a small WebP; None if it cannot be read."""
    try:
        if str(path).lower().endswith(VIDEO):
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
