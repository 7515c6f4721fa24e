"""What a source is: a folder of files, a table of files, features, an index, a bundled data set or a public collection.

`form_of` answers, and `open_source` opens what it found; index, extract, check and init all ask here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.parsing import parsing
from calmrl._support.places import check_source, holds_index, is_remote
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.features.formats import FORMATS
from calmrl.data.media.folder import read_folder
from calmrl.data.media.manifest import TABLE_SUFFIXES, Manifest, build, guess_kinds, read_manifest, read_rows
from calmrl.data.media.problems import Problems
from calmrl.datasets.registry import DATASETS, Indexing, indexing_of, load_dataset
from calmrl.errors import InputError

FOLDER, MANIFEST, FEATURES, INDEX, DATASET, COLLECTION = (
    "folder",
    "manifest",
    "features",
    "index",
    "dataset",
    "collection",
)


@dataclass
class Source:
    """A source that was opened: its features, or the manifest of its files."""

    form: str  # what `form_of` says
    root: str  # the folder that paths are relative to, or what else tells sources apart
    features: FeatureSet | None = None
    manifest: Manifest | None = None
    problems: Problems = field(default_factory=Problems)
    remarks: list[str] = field(default_factory=list)  # on a public collection: counts against the published ones

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of what its items may have."""
        return tuple(self.manifest.kinds if self.manifest is not None else self.features.names if self.features else ())

    @property
    def indexing(self) -> Indexing:
        """What an index of it needs besides its features, if it is a bundled data set."""
        return indexing_of(self.root if self.form == DATASET else None)


def form_of(source: Any) -> str | None:
    """What a source is; None for a path that does not exist, or a file whose suffix says nothing.

    Parameters
    ----------
    source : str, Path, FeatureSet, dict or PublicCollection
        A path, an address, the name of a bundled data set, features in memory, or a public collection.

    Returns
    -------
    {"folder", "manifest", "features", "index", "dataset", "collection"} or None
    """
    if isinstance(source, (FeatureSet, Mapping)):
        return FEATURES
    if callable(getattr(source, "read", None)):
        return COLLECTION
    if is_remote(source):
        return INDEX
    path = Path(source)
    if path.is_dir():
        if holds_index(path):
            return INDEX
        return FEATURES if (path / "features.json").exists() or any(path.glob("*.npy")) else FOLDER
    if not path.exists():
        return DATASET if str(source) in DATASETS else None
    if path.suffix in FORMATS and (path.suffix != ".parquet" or _holds_vectors(path)):
        return FEATURES
    return MANIFEST if path.suffix.lower() in TABLE_SUFFIXES else None


def open_source(
    source: Any,
    kinds: Mapping[str, str] | None = None,
    *,
    some: bool = False,
    accept: Collection[str] = (FOLDER, MANIFEST, FEATURES, DATASET, COLLECTION),
    root: str | Path | None = None,
    captions: str | Path | None = None,
    ignore: Collection[str] = (),
    holes: bool = False,
) -> Source:
    """Open a source.

    Parameters
    ----------
    source
        As for `form_of`; or what this function returned.
    kinds : mapping of str to str, optional
        The modalities of a manifest or a collection -> "text", "image" or "audio"; otherwise those of a manifest are guessed.
        Folders and features always give all they have.
    some : bool
        Whether a manifest may lack some of these modalities.
    accept : collection of str
        What the source may be.
    root, captions, ignore
        Of a manifest: see `calmrl.data.read_manifest`.
    holes : bool
        Whether rows of features may be NaN in single entries.
    """
    if isinstance(source, Source):
        return source
    form = form_of(source)
    if form not in accept:
        _refuse(source, form, accept)
    if form == FEATURES:
        return _open_features(source, holes)
    if form == DATASET:
        return Source(DATASET, str(source), features=_open_dataset(str(source)))
    problems = Problems()
    if form == COLLECTION:
        content = source.read(None if kinds is None else list(kinds))
        manifest = build(content.rows, kinds or content.kinds, problems, root=Path(), ignore=ignore)
        return Source(COLLECTION, str(source.root), None, manifest, problems, [content.counts, *content.notes])
    path = Path(source)
    if form == FOLDER:
        return Source(FOLDER, str(path.resolve()), manifest=read_folder(path, problems), problems=problems)
    chosen = _kinds_of_table(path) if kinds is None else _kinds_among(path, kinds) if some else kinds
    manifest = read_manifest(path, chosen, problems, root=root, captions=captions, ignore=ignore)
    home = path.resolve().parent if root is None else Path(root).resolve()
    return Source(MANIFEST, str(home), manifest=manifest, problems=problems)


def _refuse(source: Any, form: str | None, accept: Collection[str]) -> NoReturn:
    tables, files = ", ".join(TABLE_SUFFIXES), ", ".join(dict.fromkeys([*TABLE_SUFFIXES, *FORMATS]))
    if form == INDEX:
        raise InputError(f"{source} is an index; give the folder, the table of files or the features that it holds")
    if form in (FEATURES, COLLECTION):
        raise InputError(f"{source} holds {form}, not files to encode; give a folder or a table of files ({tables})")
    if Path(source).exists():
        ending = files if FEATURES in accept else tables
        raise InputError(f"{source} ends in {Path(source).suffix!r}; give a folder, or a file that ends in {ending}")
    if DATASET in accept:
        check_source(source, list(DATASETS))
    if FEATURES in accept:
        raise InputError(f"{source} does not exist; give a folder of files, a table of files, or features")
    raise InputError(f"no manifest at {source}; give a file that ends in {tables}")


def _open_features(source: Any, holes: bool) -> Source:
    if isinstance(source, FeatureSet):
        return Source(FEATURES, str(source.path or source.name or FEATURES), features=source)
    if isinstance(source, Mapping):
        return Source(FEATURES, FEATURES, features=FeatureSet(dict(source), holes=holes))
    return Source(FEATURES, str(Path(source).resolve()), features=open_features(source, holes=holes))


def dataset_or_path(source: FeatureSet | str | Path) -> FeatureSet | str | Path:
    """A bundled data set where nothing but its name is given, and no file of that name exists; anything else as it is."""
    named = isinstance(source, (str, Path)) and str(source) in DATASETS and not Path(source).exists()
    return _open_dataset(str(source)) if named else source


def _open_dataset(name: str) -> FeatureSet:
    """A bundled data set with features as the encoders gave them, so that new files can be compared with them."""
    raw = {"standardize": False} if "standardize" in DATASETS.signature(name).parameters else {}
    return load_dataset(name, **raw)


def _holds_vectors(path: Path) -> bool:
    """Whether a Parquet file has a column of lists of floats, as features have."""
    with parsing(path, "Parquet"):
        types = [column.type for column in pq.read_schema(path)]
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(pa.types.is_floating(kind.value_type) for kind in types if any(test(kind) for test in lists))


def _kinds_of_table(path: Path) -> dict[str, str]:
    """What the columns of a table hold, judged by their names and values."""
    rows = [row for _, row in read_rows(path, Problems())]
    kinds = guess_kinds(rows)
    if not kinds:
        columns = ", ".join(dict.fromkeys(str(name) for row in rows for name in row))
        raise InputError(
            f"{path} has no column that is called text or holds names of pictures, videos or sounds; it has {columns}; name "
            "the encoders of its columns, for instance image=efficientnet_lite0"
        )
    return kinds


def _kinds_among(path: Path, kinds: Mapping[str, str]) -> dict[str, str]:
    """Those that a table has a column for."""
    columns = {name for _, row in read_rows(path, Problems()) for name in row}
    return {name: kind for name, kind in kinds.items() if name in columns}
