"""What is known about each row besides its features: a table with the columns id, split, labels, text and others."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl.errors import InputError

ARGUMENTS = ("split", "labels", "text")  # columns that `meta_table` and the writers of features have an argument for


def meta_table(
    n: int,
    *,
    ids: Iterable[Any] | None = None,
    split: Iterable[Any] | None = None,
    labels: Iterable[Any] | None = None,
    text: Iterable[Any] | None = None,
    columns: Mapping[str, Iterable[Any]] | None = None,
) -> pa.Table:
    """The table of n rows. Without `ids` the rows are called "0", "1", ...

    An entry of `labels` is a string, a number or a list of strings; an entry of `text` is one caption or a list of
    captions; None stands for "unknown". Columns that are None are left out.
    """
    names = [str(value) for value in range(n)] if ids is None else [_id(value) for value in ids]
    check_ids(names)
    given = {"split": split, "labels": labels, "text": text}
    for name in columns or {}:
        if name in {"id", *given}:
            raise InputError(f'column "{name}" has an argument of its own; do not pass it in columns')
    every = {"id": names} | {k: v for k, v in given.items() if v is not None} | dict(columns or {})
    arrays = {name: _column(name, values) for name, values in every.items()}
    for name, array in arrays.items():
        if len(array) != n:
            what = "ids" if name == "id" else f'column "{name}"'
            raise InputError(f"{what} has {len(array)} entries but there are {n} rows; pass one entry per row")
    return pa.table(arrays)


def _id(value: Any) -> str:
    if value is None or isinstance(value, (list, tuple, dict, np.ndarray)):
        raise InputError(f"an id is a text or a number; got {value!r:.60}")
    return str(value)


def check_ids(ids: list[str]) -> None:
    """Ids are distinct and not empty."""
    if len(set(ids)) != len(ids):
        twice = [name for name, count in Counter(ids).items() if count > 1]
        shown = ", ".join(repr(name) for name in twice[:3]) + (", ..." if len(twice) > 3 else "")
        raise InputError(
            f"{len(twice)} ids occur more than once ({shown}); every row needs an id of its own, because rows are "
            "matched by it"
        )
    if "" in ids:
        raise InputError(f"row {ids.index('')} has an empty id; every row needs an id of its own")


def same_table(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables hold the same; not-a-number is the same as not-a-number, which Arrow denies."""
    if one.equals(other):
        return True
    if not one.schema.equals(other.schema) or one.num_rows != other.num_rows:
        return False
    unequal = [name for name in one.column_names if not one[name].equals(other[name])]
    return all(repr(one[name].to_pylist()) == repr(other[name].to_pylist()) for name in unequal)


def column_values(table: pa.Table, name: str) -> np.ndarray:
    """A column as a NumPy array: numbers where all are known, else objects with None for unknown."""
    column = table[name]
    is_number = any(test(column.type) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean))
    if column.null_count == 0 and is_number:
        return column.to_numpy()
    values = np.empty(len(column), dtype=object)
    values[:] = column.to_pylist()
    return values


def described(table: pa.Table) -> dict[str, Any]:
    """A table of rows, without ids, as arguments of `meta_table`, `FeatureWriter` and `write_features`."""
    columns = {name: column_values(table, name) for name in table.column_names if name != "id"}
    return {**{name: columns.pop(name, None) for name in ARGUMENTS}, "columns": columns}


def _column(name: str, values: Iterable[Any]) -> pa.Array:
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "biuf":
        return pa.array(values)
    entries = [value.item() if isinstance(value, np.generic) else value for value in values]
    if any(isinstance(value, (list, tuple)) for value in entries):  # some have several: then each has a list
        entries = [[value] if isinstance(value, str) else value for value in entries]
    try:
        return pa.array(entries, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f'column "{name}" mixes kinds of values ({error}); use one kind per column') from error
