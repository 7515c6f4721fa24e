"""What may be indexed: a folder, a table of files, features, or a bundled data set by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.parsing import parsing
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.media.collection_problems import Problems
from calmrl.data.media.folder import read_folder
from calmrl.data.media.manifest import Manifest, read_manifest
from calmrl.data.media.suffixes import KINDS, modality_of
from calmrl.data.media.table_files import read_rows
from calmrl.datasets.registry import DATASETS, load_dataset
from calmrl.encoders.registry import is_path, load_encoder, spec_of
from calmrl.errors import InputError

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
        raise InputError(f"{path} has no column of files and no column text; name encoders with --encoder COLUMN=NAME")
    return kinds


def kinds_of(encoders: Mapping[str, str]) -> dict[str, str]:
    """Modality -> what its encoder takes."""
    return {
        name: load_encoder(encoder).kind if is_path(encoder) else spec_of(encoder).kind
        for name, encoder in encoders.items()
    }
