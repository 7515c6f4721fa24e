"""A Parquet file as a feature directory, in pieces, so that the file may be larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.parsing import parsing
from calmrl.data.features.formats import caption_column, vector_names, vectors
from calmrl.data.features.row_table import column_values
from calmrl.data.features.writer import FeatureWriter

PIECE_BYTES = 1 << 26  # values that are held at a time
ARGUMENTS = ("split", "labels", "text")  # columns for which the writer has an argument


def copy_parquet(path: Path, out: Path) -> None:
    """Write the rows of a Parquet file as the feature directory `out`; goes on where an earlier call stopped.

    The same as `write_features` of `open_features(path)`, but only the columns that describe the rows are held in memory.
    """
    with parsing(path, "Parquet"):
        file = pq.ParquetFile(path)
        names = vector_names(path, file.schema_arrow)
        other = [name for name in file.schema_arrow.names if name not in names]
        table = caption_column(file.read(columns=other))
        first = {name: _first(path, file, name) for name in names}
    widths = {name: array.shape[1] for name, array in first.items()}
    dtype = np.result_type(*(array.dtype for array in first.values())).name
    described: dict[str, Any] = {name: column_values(table, name) for name in table.column_names}
    ids = described.pop("id", range(file.metadata.num_rows))
    about = {name: described.pop(name, None) for name in ARGUMENTS}
    with FeatureWriter(out, widths, ids, dtype=dtype, columns=described, **about) as writer:
        start = 0
        for piece in _pieces(path, file, widths):
            rows = slice(start, start + piece.num_rows)
            z = {name: vectors(path, name, piece[name], widths[name]) for name in names}
            present = np.stack([piece[name].is_valid().to_numpy(zero_copy_only=False) for name in names], axis=1)
            writer.fill(rows, z, present)
            start += piece.num_rows
        writer.finish()


def _pieces(path: Path, file: pq.ParquetFile, widths: dict[str, int]) -> Any:
    """Batches of rows of about PIECE_BYTES."""
    rows = max(1, PIECE_BYTES // (8 * sum(widths.values())))
    batches = file.iter_batches(rows, columns=list(widths))
    while True:
        with parsing(path, "Parquet"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _first(path: Path, file: pq.ParquetFile, name: str) -> np.ndarray:
    """The vectors of the first row groups, up to one that has any: their width and dtype are those of the column."""
    column: Any = pa.nulls(0, file.schema_arrow.field(name).type)
    for group in range(file.num_row_groups):
        column = file.read_row_group(group, columns=[name])[name].combine_chunks()
        if column.null_count < len(column):
            break
    return vectors(path, name, column)
