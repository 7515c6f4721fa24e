"""Tables in files: Parquet and Lance, with the columns of `calmrl.data.features.arrow_table`.

A column of Lance cannot have a dot in its name: there `image.std` is `image/std`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.output import new_directory, new_file
from calmrl._support.parsing import parsing
from calmrl.data.features.arrow_table import Groups
from calmrl.data.features.arrow_table import from_arrow as from_arrow
from calmrl.data.features.arrow_table import to_arrow as to_arrow
from calmrl.data.features.feature_set import FeatureSet, read_table
from calmrl.errors import InputError, need

TABLE = "features"
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
        try:
            pq.write_table(table, draft)
        except pa.ArrowNotImplementedError:  # older pyarrow has no nulls in lists of one length
            pq.write_table(with_plain_lists(table), draft)


def with_plain_lists(table: pa.Table) -> pa.Table:
    """The table with lists of any length in place of lists of one length, of which older pyarrow cannot write nulls."""
    columns: list[pa.Array | pa.ChunkedArray] = []
    for column in table.columns:
        if pa.types.is_fixed_size_list(column.type):
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
