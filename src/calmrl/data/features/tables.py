"""Features as an Arrow table: what frames, data sets, Parquet and Lance have in common.

| column | holds |
|---|---|
| `<modality>` | d floats per row; null where the modality was not observed |
| `<modality>.imputed` | what was imputed; null elsewhere |
| `<modality>.std` | standard deviations of what was imputed; null elsewhere |
| others | id, split, labels, text and whatever else is known about the rows |

So whoever reads `<modality>` sees nothing but observations. A row whose single values were imputed is NaN there, and is whole
in `<modality>.imputed`. In the wide form every list is spread over numbered columns:
`<modality>.0`, `<modality>.1`, ..., `<modality>.imputed.0`, ... Where a modality is called "text", the captions are the
column "captions".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from calmrl.arrays import check_names
from calmrl.data.features.feature_set import FeatureSet, pick
from calmrl.errors import InputError

IMPUTED, STD = ".imputed", ".std"  # no modality has a dot in its name
NUMBERED = re.compile(r"(?P<list>[^.]+(?:\.imputed|\.std)?)\.(?P<number>\d+)")
Groups = Sequence[str] | Mapping[str, Sequence[str]]  # modalities wanted, or modality -> columns of numbers


def to_arrow(features: FeatureSet, wide: bool = False) -> pa.Table:
    """Features as a table; observed and imputed values stand in columns of their own.

    Parameters
    ----------
    features : FeatureSet
    wide : bool
        A column of numbers per entry instead of a column of lists per modality.
    """
    columns: dict[str, pa.Array] = {}
    for j, (name, values) in enumerate(features.z.items()):
        has, holes = np.asarray(features.present[:, j]), imputed_holes(features, j)
        columns[name] = _lists(np.where(holes, np.nan, values).astype(values.dtype) if holes.any() else values, has)
        if features.imputed is not None:
            rows = np.asarray(features.imputed[:, j]) | holes.any(axis=1)
            columns[name + IMPUTED] = _lists(values, rows)
            if features.std is not None and name in features.std:
                columns[name + STD] = _lists(features.std[name], rows)
    about = {("captions" if name == "text" and name in columns else name): name for name in features.meta.column_names}
    for shown, name in about.items():
        values = features.meta[name]
        if shown in columns or is_vector(values.type) or NUMBERED.fullmatch(shown):
            raise InputError(
                f'the column "{shown}" that describes the rows would be taken for a modality; rename it or leave it out'
            )
    described = {shown: features.meta[name] for shown, name in about.items()}
    return pa.table({**described, **(_spread(columns) if wide else columns)})


def imputed_holes(features: FeatureSet, j: int) -> np.ndarray:
    """(N, d) bool: single values that were imputed inside observed blocks of modality j; their deviations say so."""
    name = features.names[j]
    if features.std is None or name not in features.std:
        return np.zeros(features.z[name].shape, dtype=bool)
    return np.asarray(features.present[:, j])[:, None] & (np.asarray(features.std[name]) > 0)


def from_arrow(
    table: pa.Table, modalities: Groups | None = None, *, origin: str = "the table", holes: bool = False
) -> FeatureSet:
    """The inverse of `to_arrow`; also for tables that others made.

    Parameters
    ----------
    table : pyarrow.Table
        Columns of lists of floats are modalities, null where missing; so are numbered columns `<modality>.0`, ...
    modalities : sequence of str, or mapping of str to sequence of str, optional
        The modalities wanted, in that order; or for each modality its columns of numbers. A row of such columns that is
        null or NaN throughout is missing. All modalities by default.
    origin : str
        Names the table in errors.
    holes : bool
        Let rows lack single entries (null or NaN), for who imputes them; otherwise that is an error.
    """
    if isinstance(modalities, Mapping):
        check_names(list(modalities))
        table, modalities = _gathered(table, modalities, origin, holes), list(modalities)
    table = gathered(table, origin, holes)
    names = modality_names(table.schema, origin)
    wanted = [names[j] for j in pick(names, modalities, origin)]
    whole = {name for name in wanted if name + IMPUTED not in table.column_names}  # holes of others are filled below
    z = {name: vectors(origin, name, table[name], holes=holes or name not in whole) for name in wanted}
    present = np.stack([_valid(table[name]) for name in wanted], axis=1)
    imputed, std = _imputed(table, z, present, origin)
    about = description(table) if len(table.schema) > len(vector_columns(table)) else None  # no columns, no rows
    return FeatureSet(z, present, about, imputed=imputed, std=std, name=origin, source=origin)


def gathered(table: pa.Table, origin: str, holes: bool = False) -> pa.Table:
    """The table with numbered columns as columns of lists."""
    if twice := {name for name in table.column_names if table.column_names.count(name) > 1}:
        raise InputError(f'{origin} has several columns "{min(twice)}"; rename them')
    return _gathered(table, _numbered(table.column_names), origin, holes)


def modality_names(schema: pa.Schema, origin: str) -> list[str]:
    """The columns of observed vectors."""
    names = [field.name for field in schema if is_vector(field.type) and not field.name.endswith((IMPUTED, STD))]
    if not names:
        raise InputError(f"{origin} has no column of lists of floats; it has {', '.join(schema.names)}")
    return names


def description(table: pa.Table) -> pa.Table:
    """The columns that describe the rows, with captions as "text"."""
    about = table.drop_columns(vector_columns(table))
    if "captions" in about.column_names and "text" not in about.column_names:
        about = about.rename_columns({"captions": "text"})
    return plain_table(about)


def vector_columns(table: pa.Table) -> list[str]:
    """The columns of vectors, observed or not."""
    return [field.name for field in table.schema if is_vector(field.type)]


def _imputed(
    table: pa.Table, z: dict[str, np.ndarray], present: np.ndarray, origin: str
) -> tuple[np.ndarray | None, dict[str, np.ndarray] | None]:
    """(which blocks were imputed, their deviations); puts imputed values into `z`."""
    if not any(name + IMPUTED in table.column_names for name in z):
        return None, None
    mask, std = np.zeros_like(present), {}
    for j, (name, values) in enumerate(z.items()):
        if name + IMPUTED not in table.column_names:
            continue
        filled = _valid(table[name + IMPUTED])
        holes = present[:, j] & np.isnan(values).any(axis=1)
        mask[:, j] = filled & ~holes
        if (mask[:, j] & present[:, j]).any():
            raise InputError(
                f'{origin}: some rows have both "{name}" and "{name + IMPUTED}"; a block is one or the other'
            )
        if filled.any():
            values[filled] = _block(origin, name + IMPUTED, table, values.shape[1])[filled]
        if name + STD in table.column_names:
            std[name] = np.where(present[:, j, None], values.dtype.type(0), np.nan).repeat(values.shape[1], axis=1)
            if filled.any():
                std[name][filled] = _block(origin, name + STD, table, values.shape[1])[filled]
    return mask, std or None


def _block(origin: str, column: str, table: pa.Table, width: int) -> np.ndarray:
    values = vectors(origin, column, table[column])
    if values.shape[1] != width:
        raise InputError(f'{origin}: column "{column}" has width {values.shape[1]} but its modality has {width}')
    return values


def _lists(values: np.ndarray, rows: np.ndarray) -> pa.FixedSizeListArray:
    """The values of some rows as lists of one length; null in other rows."""
    filled = np.where(np.asarray(rows)[:, None], values, np.asarray(values).dtype.type(0))
    return pa.FixedSizeListArray.from_arrays(
        pa.array(filled.ravel()), values.shape[1], mask=pa.array(~np.asarray(rows))
    )


def _spread(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Lists as numbered columns."""
    return {
        f"{name}.{j}": pc.list_element(lists, j) for name, lists in columns.items() for j in range(lists.type.list_size)
    }


def _numbered(names: Sequence[str]) -> dict[str, list[str]]:
    """{"image": ["image.0", "image.1", ...]} from names of numbered columns."""
    numbers: dict[str, dict[int, str]] = {}
    for name in names:
        if match := NUMBERED.fullmatch(name):
            numbers.setdefault(match["list"], {})[int(match["number"])] = name
    return {name: [columns[j] for j in sorted(columns)] for name, columns in numbers.items()}


def _gathered(table: pa.Table, groups: Mapping[str, Sequence[str]], origin: str, holes: bool) -> pa.Table:
    """The table with each group of number columns as one column of lists."""
    for name, columns in groups.items():
        missing = [column for column in columns if column not in table.column_names]
        if missing or not len(columns):
            raise InputError(f'{origin} has no column {missing[:3]} for modality "{name}"; name columns of the table')
        lists = _one_column(table.select(list(columns)), name, origin, holes or name + IMPUTED in groups)
        table = table.drop_columns(list(columns)).append_column(name, lists)
    return table


def _one_column(table: pa.Table, name: str, origin: str, holes: bool) -> pa.Array:
    parts = []
    for field, column in zip(table.schema, table.columns, strict=True):
        if not (pa.types.is_floating(field.type) or pa.types.is_integer(field.type)):
            raise InputError(f'{origin}: column "{field.name}" of modality "{name}" holds {field.type}, not numbers')
        whole = pa.types.is_integer(field.type)
        parts.append((column.cast(pa.float64()) if whole else column).to_numpy(zero_copy_only=False))
    values = np.stack(parts, axis=1)
    gap = np.isnan(values)
    partly = np.flatnonzero(gap.any(axis=1) & ~gap.all(axis=1))
    if len(partly) and not holes:
        raise InputError(
            f'{origin}: row {partly[0]} has some columns of modality "{name}" and lacks others; a modality is missing as a '
            "whole: impute the single values first (calmrl impute), or drop them"
        )
    return _lists(values, ~gap.all(axis=1))


def is_vector(arrow_type: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(arrow_type) for test in lists) and pa.types.is_floating(arrow_type.value_type)


def _valid(column: pa.ChunkedArray) -> np.ndarray:
    return column.is_valid().to_numpy()


def vectors(
    origin: str, name: str, chunks: pa.ChunkedArray, width: int | None = None, holes: bool = False
) -> np.ndarray:
    """A column of equally long lists as (rows, width), NaN where null; `width`, if known, is what it must be.

    With `holes` also single entries may be null.
    """
    column = chunks.combine_chunks()
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(column.type):
        lengths = np.array([column.type.list_size])
    elif not valid.any() and width is not None:
        lengths = np.array([width])
    elif not valid.any():
        raise InputError(f'{origin}: column "{name}" is null throughout, so that its width is unknown; leave it out')
    else:
        lengths = column.value_lengths().drop_null().to_numpy(zero_copy_only=False)
        lengths = lengths if width is None else np.append(lengths, width)
    if len(set(lengths.tolist())) > 1:
        raise InputError(
            f'{origin}: the lists of column "{name}" have {min(lengths)} to {max(lengths)} entries; make them equally long'
        )
    if lengths[0] == 0:
        raise InputError(
            f'{origin}: the lists of column "{name}" are empty; a missing modality is null, not an empty list'
        )
    values = column.drop_null().flatten()
    if values.null_count and not holes:
        raise InputError(f'{origin}: a list of column "{name}" has null entries; a missing modality is null as a whole')
    flat = values.to_numpy(zero_copy_only=False)
    array = np.full((len(column), int(lengths[0])), np.nan, dtype=flat.dtype)
    array[valid] = flat.reshape(-1, int(lengths[0]))
    return array


def plain_table(table: pa.Table) -> pa.Table:
    """With the types that features on disk have: no categories, no large strings, no notes on the schema."""
    for j, field in enumerate(table.schema):
        table = table.set_column(j, field.name, table[field.name].cast(_plain_type(field.type)))
    return table.replace_schema_metadata(None)


def _plain_type(arrow_type: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(arrow_type):
        return _plain_type(arrow_type.value_type)
    if pa.types.is_large_string(arrow_type) or pa.types.is_string_view(arrow_type):
        return pa.string()
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return pa.list_(_plain_type(arrow_type.value_type))
    return arrow_type
