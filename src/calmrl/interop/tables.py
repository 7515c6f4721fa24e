"""Tables of other libraries: Parquet, Lance, pandas, polars, `datasets` and WebDataset, with the columns of
`calmrl.data.features.tables`.

A column of Lance cannot have a dot in its name: there `image.std` is `image/std`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.output import new_directory, new_file
from calmrl._support.parsing import parsing
from calmrl.data.features.directory import read_npy
from calmrl.data.features.feature_set import FeatureSet, read_table
from calmrl.data.features.shards import IMPUTED, STD, Sample, samples, write_shards
from calmrl.data.features.tables import NUMBERED, Groups
from calmrl.data.features.tables import from_arrow as from_arrow
from calmrl.data.features.tables import to_arrow as to_arrow
from calmrl.errors import InputError, need

TABLE = "features"
NULLS_IN_LISTS = int(pa.__version__.partition(".")[0]) >= 26  # of one length; older pyarrow cannot read them back
DOT, SLASH = ".", "/"  # neither is part of a modality's name


def to_parquet(features: FeatureSet, path: str | Path, wide: bool = False) -> None:
    """Write a Parquet file; with `wide` a column of numbers per entry instead of a column of lists per modality.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> path = tempfile.mkdtemp() + "/rows.parquet"
    >>> written = to_parquet(features, path)
    >>> from_parquet(path).present.tolist()
    [[True, True], [True, False]]
    """
    table = to_arrow(features, wide)
    with new_file(path, advice="") as draft:
        write_table(table, draft)


def write_table(table: pa.Table, path: Path, **options: Any) -> None:
    """`pyarrow.parquet.write_table` with its options, for any pyarrow."""
    pq.write_table(table if NULLS_IN_LISTS else with_plain_lists(table), path, **options)


def with_plain_lists(table: pa.Table) -> pa.Table:
    """The table with lists of any length where lists of one length have nulls."""
    columns: list[pa.Array | pa.ChunkedArray] = []
    for column in table.columns:
        if pa.types.is_fixed_size_list(column.type) and column.null_count:
            lists = column.combine_chunks()
            there = lists.is_valid().to_numpy(zero_copy_only=False)
            ends = np.concatenate([[0], np.cumsum(there * column.type.list_size)])
            offsets = pa.array(ends, mask=np.append(~there, False))  # the offset of a null is null
            column = pa.LargeListArray.from_arrays(offsets, lists.drop_null().flatten())
        columns.append(column)
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def from_parquet(path: str | Path, modalities: Groups | None = None) -> FeatureSet:
    """Read a Parquet file into memory; `modalities` as in `from_arrow`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> path = tempfile.mkdtemp() + "/rows.parquet"
    >>> written = to_parquet(features, path)
    >>> from_parquet(path).present.tolist()
    [[True, True], [True, False]]
    """
    return from_arrow(read_table(Path(path)), modalities, origin=str(path))


def to_lance(features: FeatureSet, path: str | Path, table: str = TABLE) -> None:
    """Write a new LanceDB directory with one table.

    Parameters
    ----------
    features : FeatureSet
    path : str or Path
        The directory, which must not exist; the table is the data set `<path>/<table>.lance`.
    table : str
        Its name.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> path = tempfile.mkdtemp() + "/rows"
    >>> written = to_lance(features, path)
    >>> from_lance(path).present.tolist()
    [[True, True], [True, False]]
    """
    lancedb = need("lancedb", "interop", "Writing Lance")
    content = to_arrow(features)
    content = content.rename_columns([name.replace(DOT, SLASH) for name in content.column_names])
    with new_directory(path, advice="") as draft:
        lancedb.connect(draft).create_table(table, content, on_bad_vectors="null")  # it takes null for a bad vector


def from_lance(path: str | Path, modalities: Groups | None = None, table: str = TABLE) -> FeatureSet:
    """Read a table of a LanceDB directory, or one data set `<name>.lance`, into memory; `modalities` as in `from_arrow`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> path = tempfile.mkdtemp() + "/rows"
    >>> written = to_lance(features, path)
    >>> from_lance(path).present.tolist()
    [[True, True], [True, False]]
    """
    lancedb = need("lancedb", "interop", "Reading Lance")
    place = Path(path)
    if place.suffix == ".lance":
        place, table = place.parent, place.stem
    if not (place / f"{table}.lance").is_dir():
        raise InputError(
            f"no Lance table at {place / f'{table}.lance'}; name its directory, and the table if it differs"
        )
    with parsing(path, "a Lance table", "if it is damaged, copy or write it again"):
        content: pa.Table = lancedb.connect(str(place)).open_table(table).to_arrow()
    content = content.rename_columns([name.replace(SLASH, DOT) for name in content.column_names])
    return from_arrow(content, _dotted(modalities), origin=str(path))


def _dotted(modalities: Groups | None) -> Groups | None:
    if not isinstance(modalities, Mapping):
        return modalities
    return {name: _dotted_names(columns) for name, columns in modalities.items()}


def _dotted_names(columns: Sequence[str]) -> list[str]:
    return [column.replace(SLASH, DOT) for column in columns]


ORIGIN = "the frame"


def to_pandas(features: FeatureSet, wide: bool = False) -> Any:
    """A `pandas.DataFrame` whose index is the ids.

    Parameters
    ----------
    features : FeatureSet
    wide : bool
        Columns of numbers (`image.0`, `image.1`, ...), NaN where missing, instead of one column of vectors per modality.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> z = {"image": np.array([[1.0, 2.0], [np.nan, np.nan]]), "text": np.array([[3.0], [4.0]])}
    >>> print(to_pandas(FeatureSet(z), wide=True))  # doctest: +NORMALIZE_WHITESPACE
        image.0  image.1  text.0
    id
    0       1.0      2.0     3.0
    1       NaN      NaN     4.0
    """
    need("pandas", "interop", "A pandas frame")
    return to_arrow(features, wide).to_pandas().set_index("id")


def from_pandas(frame: Any, modalities: Groups | None = None, holes: bool = False) -> FeatureSet:
    """Features from a `pandas.DataFrame`; ids are its column or index "id", or any other index that is not a range.

    Parameters
    ----------
    frame : pandas.DataFrame
    modalities : sequence of str, or mapping of str to sequence of str, optional
        The modalities wanted; or for each modality its columns of numbers.
    holes : bool
        Let rows lack single entries (null or NaN), for who imputes them; otherwise that is an error.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_pandas(to_pandas(features)).present.tolist()
    [[True, True], [True, False]]
    """
    frame = _one_level(frame)
    if "id" not in frame.columns and type(frame.index).__name__ != "RangeIndex":
        frame = frame.assign(id=[str(value) for value in frame.index])
    if len({str(name) for name in frame.columns}) < len(frame.columns):
        raise InputError(f"{ORIGIN} has several columns of the same name; rename them")
    columns = {str(name): _column(str(name), frame[name]) for name in frame.columns}
    return from_arrow(pa.table(columns), modalities, origin=ORIGIN, holes=holes)


def to_polars(features: FeatureSet, wide: bool = False) -> Any:
    """A `polars.DataFrame`; `wide` as in `to_pandas`.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_polars(to_polars(features)).present.tolist()
    [[True, True], [True, False]]
    """
    polars = need("polars", "interop", "A polars frame")
    return polars.from_arrow(to_arrow(features, wide))


def from_polars(frame: Any, modalities: Groups | None = None, holes: bool = False) -> FeatureSet:
    """Features from a `polars.DataFrame`; `modalities` and `holes` as in `from_pandas`.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_polars(to_polars(features)).present.tolist()
    [[True, True], [True, False]]
    """
    return from_arrow(frame.to_arrow(), modalities, origin=ORIGIN, holes=holes)


def has_vectors(frame: Any) -> bool:
    """Whether a frame holds modalities by itself: cells that are vectors, numbered columns, or two levels of columns."""
    if getattr(frame.columns, "nlevels", 1) == 2 or any(NUMBERED.fullmatch(str(name)) for name in frame.columns):
        return True
    if hasattr(frame, "iloc"):
        return any(_first(frame[name]) is not None for name in frame.columns if frame[name].dtype == object)
    return any(type(dtype).__name__ in ("List", "Array") for dtype in frame.dtypes)


def _first(column: Any) -> Any:
    """The first cell of a column of objects that is a vector, if the first that is known is one."""
    known = column.dropna()
    return known.iloc[0] if len(known) and isinstance(known.iloc[0], (np.ndarray, list, tuple)) else None


def _one_level(frame: Any) -> Any:
    """Two levels of columns become numbered columns; (name, "") is a column of its own."""
    if frame.columns.nlevels == 1:
        return frame
    if frame.columns.nlevels > 2:
        raise InputError(f"{ORIGIN} has {frame.columns.nlevels} levels of columns; two name modality and entry")
    names, count = [], dict[str, int]()
    for modality, entry in frame.columns:
        if entry == "":
            names.append(str(modality))
            continue
        names.append(f"{modality}.{count.get(modality, 0)}")
        count[modality] = count.get(modality, 0) + 1
    flat = frame.copy()
    flat.columns = names
    return flat


def _column(name: str, values: Any) -> pa.Array:
    try:
        return pa.Array.from_pandas(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f'column "{name}" of {ORIGIN} mixes kinds of values ({error}); use one kind per column'
        ) from error


def to_dataset(features: FeatureSet) -> Any:
    """A `datasets.Dataset` in memory: a column of lists per modality, null where it is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_dataset(to_dataset(features)).present.tolist()
    [[True, True], [True, False]]
    """
    datasets = need("datasets", "interop", "A Dataset")
    return datasets.Dataset(datasets.table.InMemoryTable(to_arrow(features)))


def from_dataset(dataset: Any, modalities: Groups | None = None, holes: bool = False) -> FeatureSet:
    """Features from a `datasets.Dataset`, in its order of rows; `modalities` and `holes` as in `from_pandas`.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_dataset(to_dataset(features)).present.tolist()
    [[True, True], [True, False]]
    """
    return from_arrow(dataset.with_format("arrow")[:], modalities, origin="the Dataset", holes=holes)


NPY = ".npy"
Vectors = dict[str, np.ndarray]  # file of a sample, without .npy -> vector


def to_webdataset(features: FeatureSet, folder: str | Path, rows: int = 10_000) -> list[Path]:
    """Write `<folder>/000000.tar`, ... with `rows` samples each, and return the paths.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> path = tempfile.mkdtemp() + "/shards"
    >>> written = to_webdataset(features, path)
    >>> from_webdataset(path).present.tolist()
    [[True, True], [True, False]]
    """
    return write_shards(features, folder, rows)


def from_webdataset(shards: str | Path | Sequence[str | Path], modalities: Sequence[str] | None = None) -> FeatureSet:
    """Read shards into memory; to stream them instead, use `calmrl.data.Shards`.

    Parameters
    ----------
    shards : path or sequence of paths
        Tar files, or a folder of them.
    modalities : sequence of str, optional
        The modalities wanted, in that order; by default all, by name.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> path = tempfile.mkdtemp() + "/shards"
    >>> written = to_webdataset(features, path)
    >>> from_webdataset(path).present.tolist()
    [[True, True], [True, False]]
    """
    vectors: list[Vectors] = []
    about: list[dict[str, Any]] = []
    for path in _paths(shards):
        for key, sample in samples(path):
            vectors.append(_vectors(sample, f"{path}: {key}"))
            about.append({"id": key, **_json(sample, f"{path}: {key}")})
    held = sorted({name for row in vectors for name in row if "." not in name})
    names = held if modalities is None else list(modalities)
    if not names or not set(names) <= set(held):
        raise InputError(
            f"the shards hold {', '.join(held) or 'no <modality>.npy'}; asked for {', '.join(names) or 'all'}"
        )
    z = {name: _stack(vectors, name) for name in names}
    present = np.array([[name in row for name in names] for row in vectors])
    imputed = np.array([[name + IMPUTED in row for name in names] for row in vectors])
    std = {}
    for j, name in enumerate(names):
        z[name][imputed[:, j]] = _stack(vectors, name + IMPUTED, z[name])[imputed[:, j]]
        if any(name + STD in row for row in vectors):
            std[name] = np.where(present[:, j, None], 0, _stack(vectors, name + STD, z[name])).astype(z[name].dtype)
    return FeatureSet(
        z,
        present,
        pa.Table.from_pylist(about),
        imputed=imputed if imputed.any() else None,
        std=std or None,
        name="shards",
        source="shards",
    )


def _paths(shards: str | Path | Sequence[str | Path]) -> list[Path]:
    if not isinstance(shards, (str, Path)):
        return [Path(path) for path in shards]
    if not Path(shards).is_dir():
        return [Path(shards)]
    paths = sorted(Path(shards).glob("*.tar"))
    if not paths:
        raise InputError(f"{shards} holds no .tar file; name the shards or their folder")
    return paths


def _vectors(sample: Sample, origin: str) -> Vectors:
    vectors = {}
    for file, content in sample.items():
        if file.endswith(NPY):
            vector = read_npy(io.BytesIO(content), len(content), f"{origin}.{file}")
            if vector.ndim != 1 or vector.dtype.kind != "f":
                raise InputError(
                    f"{origin}.{file} holds {vector.dtype} of shape {vector.shape}; expected a vector of floats"
                )
            vectors[file.removesuffix(NPY)] = vector
    return vectors


def _json(sample: Mapping[str, bytes], origin: str) -> dict[str, Any]:
    if "json" not in sample:
        return {}
    try:
        content = json.loads(sample["json"])
    except ValueError as error:
        raise InputError(f"{origin}.json is no JSON ({error}); write the shard again") from error
    if not isinstance(content, dict):
        raise InputError(f"{origin}.json holds a {type(content).__name__}; expected names and values")
    return content


def _stack(rows: Sequence[Vectors], name: str, like: np.ndarray | None = None) -> np.ndarray:
    """(rows, width), NaN where a sample lacks the file; as wide as the vectors, or as `like`."""
    vectors = [row[name] for row in rows if name in row]
    widths = {len(vector) for vector in vectors} | ({like.shape[1]} if like is not None else set())
    if len(widths) > 1:
        raise InputError(f"vectors of {name} have {min(widths)} to {max(widths)} entries; make them equally long")
    dtype = np.result_type(*(vector.dtype for vector in vectors)) if like is None else like.dtype
    block = np.full((len(rows), widths.pop()), np.nan, dtype)
    for number, row in enumerate(rows):
        if name in row:
            block[number] = row[name]
    return block
