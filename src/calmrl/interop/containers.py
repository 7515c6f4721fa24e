"""Objects and files of other libraries that hold features: what estimators accept beside a dict of arrays, and return in kind.

| object | a modality is |
|---|---|
| `FeatureSet` | an entry of `z` |
| `mudata.MuData` | one of its AnnData objects |
| `anndata.AnnData` | the columns with one value of `var["modality"]` or `var["feature_types"]` |
| `pandas.DataFrame`, `polars.DataFrame`, `datasets.Dataset`, `pyarrow.Table` | a column of vectors, or numbered columns |

Tables, those in Parquet and Lance files too, have the columns of `calmrl.data.features.tables`. A column of Lance cannot have a
dot in its name: there `image.std` is `image/std`. None of these libraries is imported to look at an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calmrl import interop  # its parts are loaded when they are used
from calmrl._support.output import new_directory, new_file
from calmrl._support.parsing import parsing
from calmrl.data.features.feature_set import FeatureSet, read_table
from calmrl.data.features.shards import from_webdataset as from_webdataset
from calmrl.data.features.shards import write_shards as to_webdataset  # noqa: F401
from calmrl.data.features.tables import NUMBERED, Groups
from calmrl.data.features.tables import from_arrow as from_arrow
from calmrl.data.features.tables import to_arrow as to_arrow
from calmrl.errors import InputError, need
from calmrl.protocols import Imputer

# package.Class -> NAME of the functions from_NAME and to_NAME
ANNOTATED = {"mudata.MuData": "mudata", "anndata.AnnData": "anndata"}
TABLES = {
    "pandas.DataFrame": "pandas",
    "polars.DataFrame": "polars",
    "datasets.Dataset": "dataset",
    "pyarrow.Table": "arrow",
}
CONTAINERS = ("calmrl.FeatureSet", *ANNOTATED, *TABLES)


def is_container(value: Any) -> bool:
    """Whether `value` is an object that holds features; a frame of plain numbers is not, for it is one matrix.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> is_container(to_pandas(load_dataset("stamps"))), is_container({"image": np.ones((2, 3))})
    (True, False)
    """
    name = _name_of(value)
    return name is not None and (not name.endswith(".DataFrame") or _is_wide(value) or _has_vectors(value))


def from_object(value: Any, holes: bool = False) -> FeatureSet:
    """Features from any object of CONTAINERS; with `holes` rows of a table may lack single entries.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> from_object(to_pandas(load_dataset("stamps"))).names
    ('image', 'text', 'speech', 'sound')
    """
    name = _name_of(value)
    if name is None:
        raise InputError(f"features cannot be read from {type(value).__name__}; they can from {', '.join(CONTAINERS)}")
    if name in ANNOTATED:
        return getattr(interop, f"from_{ANNOTATED[name]}")(value)
    return getattr(interop, f"from_{TABLES[name]}")(value, holes=holes) if name in TABLES else value


def to_object(features: FeatureSet, like: Any) -> Any:
    """Features as an object of the kind of `like`, which they come from.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> features = load_dataset("stamps")
    >>> type(to_object(features, like=to_pandas(features))).__name__
    'DataFrame'
    """
    name = _name_of(like)
    if name is None:
        raise InputError(f"features cannot be written as {type(like).__name__}; they can as {', '.join(CONTAINERS)}")
    if name in ANNOTATED:
        return getattr(interop, f"to_{ANNOTATED[name]}")(features, like)
    how = {"wide": True} if name in TABLES and TABLES[name] != "dataset" and _is_wide(like) else {}
    return getattr(interop, f"to_{TABLES[name]}")(features, **how) if name in TABLES else features


def impute_object(imputer: Imputer, value: Any) -> Any:
    """The object with its missing modalities imputed by a fitted imputer; a new one of the same kind.

    What was observed stays where it was. Imputed values, their standard deviations and masks stand beside it: layers in
    MuData and AnnData, columns `<modality>.imputed` and `<modality>.std` in tables, `imputed` and `std` in a FeatureSet. A row
    that lacked single entries keeps NaN there, and is whole among the imputed values.

    Examples
    --------
    >>> from calmrl.data import FeatureSet
    >>> from calmrl.imputers import MeanImputer
    >>> frame = to_pandas(FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])}))
    >>> impute_object(MeanImputer().fit(frame), frame)["text.imputed"].tolist()[1].tolist()
    [1.0, 2.0]
    """
    features = from_object(value, holes=True)
    present = np.asarray(features.present)
    z, std = imputer.impute(features.z, present, return_std=True)
    seen = np.zeros((len(features), len(z)), dtype=bool)
    for j, name in enumerate(z):
        if name in features.names:
            seen[:, j] = present[:, features.names.index(name)]
    done = FeatureSet(
        z, seen, features.meta, imputed=~seen, std=std, name=features.name, source=features.source, info=features.info
    )
    return to_object(done, value)


def _name_of(value: Any) -> str | None:
    """`package.Class` of an object, if it is one of CONTAINERS or inherits from one."""
    names = (f"{kind.__module__.split('.')[0]}.{kind.__qualname__}" for kind in type(value).__mro__)
    return next((name for name in names if name in CONTAINERS), None)


def _is_wide(table: Any) -> bool:
    """Whether modalities are numbered columns, or two levels of columns, rather than columns of lists."""
    names = table.column_names if hasattr(table, "column_names") else table.columns
    return getattr(names, "nlevels", 1) == 2 or any(NUMBERED.fullmatch(str(name)) for name in names)


def _has_vectors(frame: Any) -> bool:
    """Whether the cells of a column of a frame are vectors: of pandas, the first cell that is known."""
    if not hasattr(frame, "iloc"):
        return any(type(dtype).__name__ in ("List", "Array") for dtype in frame.dtypes)
    known = (frame[name].dropna() for name in frame.columns if frame[name].dtype == object)
    return any(len(column) and isinstance(column.iloc[0], (np.ndarray, list, tuple)) for column in known)


# ---- frames and data sets

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
    >>> from calmrl.datasets import load_dataset
    >>> from_pandas(to_pandas(load_dataset("stamps"))).present.shape
    (963, 4)
    """
    frame = _one_level(frame)
    if "id" not in frame.columns and type(frame.index).__name__ != "RangeIndex":
        frame = frame.assign(id=[str(value) for value in frame.index])
    if len({str(name) for name in frame.columns}) < len(frame.columns):
        raise InputError(f"{ORIGIN} has several columns of the same name; rename them")
    columns = {str(name): arrow_column(frame[name], f'column "{name}" of {ORIGIN}') for name in frame.columns}
    return from_arrow(pa.table(columns), modalities, origin=ORIGIN, holes=holes)


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
    return frame.set_axis(names, axis=1)


def arrow_column(values: Any, label: str) -> pa.Array:
    """A column of a pandas frame; `label` names it in the error about values that are not of one kind."""
    try:
        return pa.Array.from_pandas(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{label} mixes kinds of values ({error}); use one kind per column") from error


def to_polars(features: FeatureSet, wide: bool = False) -> Any:
    """A `polars.DataFrame`; `wide` as in `to_pandas`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> to_polars(load_dataset("stamps")).shape
    (963, 12)
    """
    polars = need("polars", "interop", "A polars frame")
    return polars.from_arrow(to_arrow(features, wide))


def from_polars(frame: Any, modalities: Groups | None = None, holes: bool = False) -> FeatureSet:
    """Features from a `polars.DataFrame`; `modalities` and `holes` as in `from_pandas`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> from_polars(to_polars(load_dataset("stamps"))).present.shape
    (963, 4)
    """
    return from_arrow(frame.to_arrow(), modalities, origin=ORIGIN, holes=holes)


def to_dataset(features: FeatureSet) -> Any:
    """A `datasets.Dataset` in memory: a column of lists per modality, null where it is missing.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> to_dataset(load_dataset("stamps")).num_rows
    963
    """
    datasets = need("datasets", "interop", "A Dataset")
    return datasets.Dataset(datasets.table.InMemoryTable(to_arrow(features)))


def from_dataset(dataset: Any, modalities: Groups | None = None, holes: bool = False) -> FeatureSet:
    """Features from a `datasets.Dataset`, in its order of rows; `modalities` and `holes` as in `from_pandas`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> from_dataset(to_dataset(load_dataset("stamps"))).present.shape
    (963, 4)
    """
    return from_arrow(dataset.with_format("arrow")[:], modalities, origin="the Dataset", holes=holes)


# ---- files

LANCE_TABLE = "features"
NULLS_IN_LISTS = int(pa.__version__.partition(".")[0]) >= 26  # of one length; older pyarrow cannot read them back
DOT, SLASH = ".", "/"  # neither is part of a modality's name


def to_parquet(features: FeatureSet, path: str | Path, wide: bool = False) -> None:
    """Write a Parquet file; with `wide` a column of numbers per entry instead of a column of lists per modality.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> to_parquet(load_dataset("stamps"), "stamps.parquet")  # doctest: +SKIP
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
    >>> from calmrl.datasets import load_dataset
    >>> path = tempfile.mkdtemp() + "/stamps.parquet"
    >>> to_parquet(load_dataset("stamps"), path)
    >>> from_parquet(path, ["text", "image"]).names
    ('text', 'image')
    """
    return from_arrow(read_table(Path(path)), modalities, origin=str(path))


def to_lance(features: FeatureSet, path: str | Path, table: str = LANCE_TABLE) -> None:
    """Write a new LanceDB directory with one table: the data set `<path>/<table>.lance`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> to_lance(load_dataset("stamps"), "database", table="stamps")  # doctest: +SKIP
    """
    lancedb = need("lancedb", "interop", "Writing Lance")
    content = to_arrow(features)
    content = content.rename_columns([name.replace(DOT, SLASH) for name in content.column_names])
    with new_directory(path, advice="") as draft:
        lancedb.connect(draft).create_table(table, content, on_bad_vectors="null")  # it takes null for a bad vector


def from_lance(path: str | Path, modalities: Groups | None = None, table: str = LANCE_TABLE) -> FeatureSet:
    """Read a table of a LanceDB directory, or one data set `<name>.lance`, into memory; `modalities` as in `from_arrow`.

    Examples
    --------
    >>> import tempfile
    >>> from calmrl.datasets import load_dataset
    >>> path = tempfile.mkdtemp() + "/database"
    >>> to_lance(load_dataset("stamps"), path)
    >>> from_lance(path).present.shape
    (963, 4)
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
    if isinstance(modalities, Mapping):
        modalities = {name: [column.replace(SLASH, DOT) for column in group] for name, group in modalities.items()}
    return from_arrow(content, modalities, origin=str(path))
