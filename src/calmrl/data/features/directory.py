"""The files of a feature directory: arrays in .npy form, the header `features.json`, and the table of rows.

The header of an array is a claim: it may promise more values than follow, or fewer. Either is an error, before anything is
allocated. Objects and structured values are refused, so that nothing is unpickled.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa

from calmrl._support.parsing import AGAIN, parsing, read_json
from calmrl.arrays import as_mask, check_names
from calmrl.errors import InputError

DESCRIPTOR = 24  # bytes that may follow an entry of an archive
LENGTHS = 26  # place of the lengths of name and extra in the header of an entry, which end it
Header = tuple[tuple[int, ...], bool, np.dtype]  # shape, whether columns come first, dtype


def open_npy(file: Path) -> np.ndarray:
    """A .npy file as a memory-mapped array; in memory if it has no values."""
    if not file.exists():
        raise InputError(f"{file} is missing; the directory is incomplete, copy or write it again")
    with parsing(file, ".npy", "it was cut off or is another format"):
        with open(file, "rb") as stream:
            shape, by_columns, dtype = _header(stream)
            offset = stream.tell()
        _check_bytes(file, shape, dtype, file.stat().st_size - offset)
        order: Literal["C", "F"] = "F" if by_columns else "C"
        if math.prod(shape) == 0:
            return np.empty(shape, dtype, order)
        return np.memmap(file, dtype, "r", offset, shape, order)


def read_npy(stream: IO[bytes], size: int, label: object) -> np.ndarray:
    """The array in .npy form that a stream of `size` bytes holds; `label` names it in errors."""
    with parsing(label, ".npy"):
        shape, _, dtype = _header(stream)
        _check_bytes(label, shape, dtype, size - stream.tell())
        stream.seek(0)
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        if stream.read(1):  # also makes an archive compare its checksum
            raise InputError(f"{label} continues after its last value; copy or write it again")
        return array


def read_npz_arrays(path: Path) -> dict[str, np.ndarray | None]:
    """Name -> array of a .npz file, in the file's order; None for what is no array."""
    arrays: dict[str, np.ndarray | None] = {}
    with parsing(path, ".npz", "it was cut off, or is another format"), zipfile.ZipFile(path) as archive:
        _check_directory(path, archive)
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if name in arrays:
                raise InputError(f'{path} holds "{name}" twice; write it again')
            arrays[name] = None
            if entry.filename.endswith(".npy"):
                with archive.open(entry) as stream:
                    arrays[name] = read_npy(stream, entry.file_size, f"{path}: {entry.filename}")
    return arrays


def _header(stream: IO[bytes]) -> Header:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, by_columns, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise ValueError(f"version {version} is for structured values")
    if dtype.hasobject or dtype.names is not None or dtype.itemsize == 0:
        raise ValueError(f"it holds {dtype}; numbers, bools or texts are read")
    if any(length < 0 for length in shape):
        raise ValueError(f"its header says shape {shape}")
    return shape, by_columns, dtype


def _check_bytes(label: object, shape: tuple[int, ...], dtype: np.dtype, size: int) -> None:
    promised = math.prod(shape) * dtype.itemsize
    if promised != size:
        what = "cut off or changed" if promised > size else "something was appended"
        raise InputError(
            f"{label}: its header says {dtype} of shape {shape}, {promised:,} bytes, but {size:,} bytes follow: {what}; "
            "copy or write it again"
        )


def _check_directory(path: Path, archive: zipfile.ZipFile) -> None:
    """Entries lie one after the other from the start of the file to its directory: none is missing from that."""
    end = 0
    entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
    places = [entry.header_offset for entry in entries] + [archive.start_dir]
    with open(path, "rb") as file:
        for entry, start, after in zip([*entries, None], places, [*places[1:], 0], strict=True):
            if not 0 <= start - end <= DESCRIPTOR:
                raise InputError(f"{path}: its directory does not list what lies at byte {end}; copy or write it again")
            if entry is not None:
                file.seek(start + LENGTHS)
                name, extra = struct.unpack("<HH", file.read(4))
                end = start + LENGTHS + 4 + name + extra + entry.compress_size
                if end > after:
                    raise InputError(f"{path}: {entry.filename} runs into the next entry; copy or write it again")


def empty_npy(path: Path, shape: tuple[int, int], dtype: np.dtype) -> None:
    """A .npy file of this shape whose values are not written yet (a hole on file systems that have them)."""
    with open(path, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + shape[0] * shape[1] * dtype.itemsize)


def write_rows(path: Path, index: np.ndarray, values: np.ndarray, sync: bool = False) -> None:
    """Put values[i] at row index[i] of a .npy file, one write per run of neighbouring rows; `sync` waits for the disk."""
    row_bytes = values.shape[1] * values.itemsize
    order = np.argsort(index, kind="stable")
    with open(path, "r+b", buffering=0) as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        offset = file.tell()
        for run in np.split(order, np.flatnonzero(np.diff(index[order]) != 1) + 1):
            if len(run):
                file.seek(offset + int(index[run[0]]) * row_bytes)
                write_all(file, np.ascontiguousarray(values[run]).data.cast("B"))
        if sync:
            os.fsync(file.fileno())


def write_all(file: BinaryIO, data: memoryview) -> None:
    """Write all of `data`, in as many pieces as the system takes."""
    while len(data):
        data = data[file.write(data) :]


FORMAT = "calmrl-features"
VERSION = 1
HEADER = "features.json"
TYPES: dict[str, type] = {"version": int, "rows": int, "modalities": dict, "info": dict}


def read_header(folder: Path) -> dict[str, Any]:
    """The content of features.json; what does not fit is an error that names it."""
    file = folder / HEADER
    header = read_json(file)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError(f"{folder} is not a feature directory: its features.json does not say format {FORMAT!r}")
    lacks = [key for key in TYPES if key not in header]
    if lacks:
        raise InputError(f"{file} lacks {', '.join(lacks)}; {AGAIN}")
    for key, wanted in TYPES.items():
        _check_type(file, key, header[key], wanted)
    if header["version"] > VERSION:
        raise InputError(f"{folder} has feature format {header['version']}, this calmrl reads up to {VERSION}; upgrade")
    if "files" not in header:
        raise InputError(f"{folder} is unfinished; run the command that writes it again, it continues where it stopped")
    for name, width in header["modalities"].items():
        _check_type(file, f"modalities.{name}", width, int)
    check_names(list(header["modalities"]))
    _check_files(file, header["files"])
    return header


def _check_files(file: Path, files: Any) -> None:
    """Name -> number of bytes and checksum."""
    _check_type(file, "files", files, dict)
    for name, written in files.items():
        _check_type(file, f"files.{name}", written, dict)
        _check_type(file, f"files.{name}.bytes", written.get("bytes"), int)
        _check_type(file, f"files.{name}.sha256", written.get("sha256"), str)
        if Path(name).name != name:
            raise InputError(f"{file}: files.{name} is no file of the directory; {AGAIN}")


def _check_type(file: Path, key: str, value: Any, wanted: type) -> None:
    negative = isinstance(value, int) and value < 0
    if not isinstance(value, wanted) or isinstance(value, bool) or negative:
        names = {int: "a number from 0 on", dict: "an object", str: "a text"}
        raise InputError(f"{file}: {key} should be {names[wanted]}; got {value!r:.60}; {AGAIN}")


RESERVED = ("present", "imputed")  # names of files that are not modalities


class DirectoryFiles:
    """The arrays of a feature directory, each checked against features.json; a directory made by hand has none.

    Attributes
    ----------
    header : dict or None
        What features.json says.
    names : list of str
        The modalities, in the order of the columns of its masks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = read_header(path) if (path / HEADER).exists() else None
        if self.header is not None:
            self.names = list(self.header["modalities"])
            return
        names = sorted(file.stem for file in path.glob("*.npy") if not file.stem.endswith(".std"))
        self.names = [name for name in names if name not in RESERVED]
        if not self.names:
            raise InputError(
                f"{path} is not a feature directory: it holds neither features.json nor any <modality>.npy; make one with "
                "calmrl extract or calmrl.data.features.writer.write_features"
            )
        check_names(self.names)

    def values(self, name: str) -> np.ndarray:
        """The features of a modality, as wide as features.json says."""
        array = self._open(f"{name}.npy")
        if self.header is not None and array.shape[1:] != (self.header["modalities"][name],):
            raise InputError(
                f"{self.path / name}.npy has shape {array.shape} but features.json says width "
                f"{self.header['modalities'][name]}; copy or write it again"
            )
        return array

    def mask(self, name: str, rows: int) -> np.ndarray:
        """present.npy or imputed.npy: a row per item and a column per modality."""
        mask = as_mask(self._open(name), str(self.path / name))
        if mask.shape != (rows, len(self.names)):
            raise InputError(
                f"{self.path / name} has shape {mask.shape} but there are {rows} rows and {len(self.names)} modalities "
                f"({', '.join(self.names)}); it needs one column for each, in that order"
            )
        return mask

    def std(self, name: str, values: np.ndarray) -> np.ndarray:
        """The standard deviations of a modality: one for every value."""
        std = self._open(f"{name}.std.npy")
        if std.shape != values.shape or std.dtype.kind != "f":
            raise InputError(
                f"{self.path / name}.std.npy holds {std.dtype} of shape {std.shape} but {name}.npy has shape {values.shape}; "
                "it needs a float for every value"
            )
        return std

    def _open(self, name: str) -> np.ndarray:
        """An array with as many rows and bytes as features.json says."""
        file = self.path / name
        written = None if self.header is None else self.header["files"].get(name)
        if written is not None and file.exists() and file.stat().st_size != written["bytes"]:
            raise InputError(
                f"{file} has {file.stat().st_size} bytes but {written['bytes']} were written: cut off or changed; copy it again"
            )
        array = open_npy(file)
        if self.header is not None and array.shape[:1] != (self.header["rows"],):
            raise InputError(
                f"{file} has shape {array.shape} but features.json says {self.header['rows']} rows; copy or write it again"
            )
        return array


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
    captions; None stands for "unknown". Columns that are None are skipped.
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
