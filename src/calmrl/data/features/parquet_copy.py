"""A Parquet file as a feature directory, in pieces, so that the file may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.parsing import parsing
from calmrl.data.features.arrow_table import NUMBERED, description, gathered, is_vector, modality_names, vectors
from calmrl.data.features.row_table import column_values, described
from calmrl.data.features.writer import FeatureWriter

PIECE_BYTES = 1 << 26  # values that are held at a time


def copy_parquet(path: Path, out: Path) -> None:
    """Write the rows of a Parquet file as the feature directory `out`; goes on where an earlier call stopped.

    The same as `write_features` of `open_features(path)`, but only the columns that describe the rows are held in memory.
    """
    origin = str(path)
    with parsing(path, "Parquet"):
        file = pq.ParquetFile(path)
        lists = gathered(file.schema_arrow.empty_table(), origin).schema
        names = modality_names(lists, origin)
        other = [field.name for field in lists if not is_vector(field.type)]
        table = description(file.read(columns=other))
        first = {name: _first(origin, file, lists.field(name)) for name in names}
    widths = {name: array.shape[1] for name, array in first.items()}
    dtype = np.result_type(*(array.dtype for array in first.values())).name
    ids = column_values(table, "id") if "id" in table.column_names else range(file.metadata.num_rows)
    with FeatureWriter(out, widths, ids, dtype=dtype, **described(table)) as writer:
        start = 0
        for piece in _pieces(path, file, sum(widths.values())):
            rows = slice(start, start + piece.num_rows)
            z = {name: vectors(origin, name, piece[name], widths[name]) for name in names}
            present = np.stack([piece[name].is_valid().to_numpy() for name in names], axis=1)
            writer.fill(rows, z, present)
            start += piece.num_rows
        writer.finish()


def _pieces(path: Path, file: pq.ParquetFile, width: int) -> Iterator[pa.Table]:
    """The columns of vectors in pieces of about PIECE_BYTES, numbered columns as lists."""
    rows = max(1, PIECE_BYTES // (8 * width))
    columns = [field.name for field in file.schema_arrow if is_vector(field.type) or NUMBERED.fullmatch(field.name)]
    batches = file.iter_batches(rows, columns=columns)
    while True:
        with parsing(path, "Parquet"):
            batch = next(batches, None)
        if batch is None:
            return
        yield gathered(pa.Table.from_batches([batch]), str(path))


def _first(origin: str, file: pq.ParquetFile, field: pa.Field) -> np.ndarray:
    """The vectors of the first row groups, up to one that has any: their width and dtype are those of the column."""
    column: Any = pa.chunked_array([], field.type)
    if not pa.types.is_fixed_size_list(field.type):  # the type has the width otherwise
        for group in range(file.num_row_groups):
            column = file.read_row_group(group, columns=[field.name])[field.name]
            if column.null_count < len(column):
                break
    return vectors(origin, field.name, column)
