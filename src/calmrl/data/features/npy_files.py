"""Arrays in .npy form, from files and out of archives, whose headers are compared with the bytes that are there.

A header is a claim: it may promise more values than follow, or fewer. Either is an error, and nothing is allocated for
a claim that cannot be true. Objects and structured values are refused, so that nothing is unpickled.
"""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from calmrl._support.parsing import parsing
from calmrl.errors import InputError

DESCRIPTOR = 24  # bytes that may follow an entry of an archive
LENGTHS = 26  # place of the lengths of name and extra in the header of an entry, which end it
MOST_DEFLATED = 1033  # bytes that one byte of a deflate stream can stand for
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
        shape, by_columns, dtype = _header(stream)
        _check_bytes(label, shape, dtype, size - stream.tell())
        flat = np.empty(math.prod(shape), dtype)
        values: Any = flat.view(np.uint8) if flat.size else b""
        content = memoryview(values)
        while len(content):
            piece = stream.read(min(len(content), 1 << 20))
            if not piece:
                raise InputError(f"{label} ends {len(content)} bytes too early; copy or write it again")
            content[: len(piece)] = piece
            content = content[len(piece) :]
        if stream.read(1):  # also makes an archive compare its checksum
            raise InputError(f"{label} goes on after its last value; copy or write it again")
        return flat.reshape(shape, order="F" if by_columns else "C")


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
                _check_entry(path, entry)
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


def _check_entry(path: Path, entry: zipfile.ZipInfo) -> None:
    """Sizes that an entry of the archive can have."""
    packed = min(entry.compress_size, path.stat().st_size)
    most = {zipfile.ZIP_STORED: packed, zipfile.ZIP_DEFLATED: packed * MOST_DEFLATED}
    if entry.compress_type not in most:
        raise InputError(f"{path}: {entry.filename} is compressed in a way that NumPy does not write; write it again")
    if entry.file_size > most[entry.compress_type]:
        raise InputError(
            f"{path}: {entry.filename} claims {entry.file_size:,} bytes out of {packed:,}, which cannot be; "
            "copy or write it again"
        )


def _check_directory(path: Path, archive: zipfile.ZipFile) -> None:
    """Entries lie one after the other from the start of the file to its directory: none was left out of that."""
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
