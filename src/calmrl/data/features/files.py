"""Files on disk: .npy files written in pieces, JSON that appears whole."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


def empty_npy(path: Path, shape: tuple[int, int], dtype: np.dtype) -> None:
    """A .npy file of this shape whose values are not written yet (a hole on file systems that have them)."""
    with open(path, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + shape[0] * shape[1] * dtype.itemsize)


def write_rows(file: BinaryIO, offset: int, index: np.ndarray, values: np.ndarray) -> None:
    """Put values[i] at row index[i] of an unbuffered file, one write per run of neighbouring rows."""
    row_bytes = values.shape[1] * values.itemsize
    order = np.argsort(index, kind="stable")
    for run in np.split(order, np.flatnonzero(np.diff(index[order]) != 1) + 1):
        if len(run):
            file.seek(offset + int(index[run[0]]) * row_bytes)
            write_all(file, np.ascontiguousarray(values[run]).data.cast("B"))


def write_all(file: BinaryIO, data: memoryview) -> None:
    while len(data):
        data = data[file.write(data) :]


def save_json(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(temporary, path)
