"""Vectors that were encoded, by the content they belong to: a run that was stopped goes on with what is there.

A folder holds for every modality a file of float32 rows and a file of keys, a line per row, written after the row has
reached the disk. `encoders.json` says which encoders made them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine
from calmrl._support.output import write_json
from calmrl._support.parsing import read_json_object
from calmrl.data.media.problems import Unreadable
from calmrl.encoders.encoder_set import Cell, EncoderSet, same_signature
from calmrl.errors import InputError

HEADER = "encoders.json"
LINE = 65  # 64 hex digits of a SHA-256 and the end of the line


class VectorStore:
    """Vectors of one width on disk, each under the SHA-256 (as hex) of what it was made from.

    A key is written after its vector has reached the disk, so that a vector with a key is whole.

    Parameters
    ----------
    folder : Path
        Where the two files are; made if it is not there.
    name : str
        Of the two files; the modality, for instance.
    width : int
        Length of the vectors.
    """

    def __init__(self, folder: Path, name: str, width: int) -> None:
        self.width = width
        folder.mkdir(parents=True, exist_ok=True)
        self._rows, self._keys = folder / f"{name}.rows", folder / f"{name}.sha256"
        for file in (self._rows, self._keys):
            file.touch()
        complete = min(self._keys.stat().st_size // LINE, self._rows.stat().st_size // (4 * width))
        os.truncate(self._keys, complete * LINE)  # what a killed run left half written
        os.truncate(self._rows, complete * 4 * width)
        keys = self._keys.read_text(encoding="ascii").split()
        self._places = {key: place for place, key in enumerate(keys)}

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, keys: Sequence[str], vectors: np.ndarray) -> None:
        """Append vectors (n, width); keys that are there already must not be given."""
        if vectors.shape != (len(keys), self.width):
            raise ValueError(f"{len(keys)} keys for vectors of shape {vectors.shape} in a store of width {self.width}")
        _append(self._rows, np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        _append(self._keys, "".join(f"{key}\n" for key in keys).encode("ascii"))
        self._places |= {key: place for place, key in enumerate(keys, start=len(self._places))}

    def get(self, keys: Sequence[str]) -> np.ndarray:
        """The vectors (n, width) float32 of these keys."""
        if not keys:
            return np.zeros((0, self.width), np.float32)
        if any(key not in self._places for key in keys):
            raise InputError("a file changed while the collection was being encoded; run the same command again")
        rows = np.memmap(self._rows, "<f4", mode="r").reshape(-1, self.width)
        return rows[[self._places[key] for key in keys]].astype(np.float32)


def _append(file: Path, content: bytes) -> None:
    with file.open("ab") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def open_stores(folder: Path, encoders: EncoderSet) -> tuple[dict[str, VectorStore], dict[str, Any]]:
    """(store of every modality, description of the encoders). Vectors of other encoders are an error."""
    description = encoders.describe()
    if (folder / HEADER).is_file():
        before = read_json_object(folder / HEADER, f"delete {folder} to start over")
        if not _same(before, description):
            raise InputError(
                f"{folder} holds vectors of a run that was begun with other encoders, frames or dtype; delete it to "
                "start over, or choose another --out"
            )
        description = before  # so that the result has the same bytes as without the interruption
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / HEADER, description)
    return {name: VectorStore(folder, name, encoders.width(name)) for name in encoders.modalities}, description


def remove_stores(folder: Path) -> None:
    """Delete what `open_stores` began."""
    shutil.rmtree(folder, ignore_errors=True)


def text_key(text: str) -> str:
    """The key of a text: its content."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_key(path: str) -> str:
    """The key of a file: its path, its size and the time of its last change."""
    try:
        status = os.stat(path)
        stamp = f"{path}\0{status.st_size}\0{status.st_mtime_ns}"
    except (OSError, ValueError):
        stamp = path
    return hashlib.sha256(stamp.encode("utf-8", "surrogateescape")).hexdigest()


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    entries, others = one["encoders"], other["encoders"]
    if {**one, "encoders": list(entries)} != {**other, "encoders": list(others)}:
        return False
    return all(
        {**entry, "signature": 0} == {**others[name], "signature": 0}
        and same_signature(entry["signature"], others[name]["signature"])
        for name, entry in entries.items()
    )


def encode_files_distributed(
    engine: Engine, encoders: EncoderSet, modality: str, sources: Sequence[Cell], batch_size: int
) -> Iterator[tuple[int, list[np.ndarray | Unreadable]]]:
    """As `EncoderSet.encode_files`; workers decode, too, wherever they run."""
    absolute = [os.path.abspath(source) if isinstance(source, (str, os.PathLike)) else source for source in sources]
    return _spread(engine, _files, encoders, modality, absolute, batch_size)


def encode_texts_distributed(
    engine: Engine, encoders: EncoderSet, modality: str, texts: Sequence[Sequence[str]], batch_size: int
) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the first item, vectors) for every batch, as from `EncoderSet.encode_texts`."""
    return _spread(engine, _texts, encoders, modality, texts, batch_size)


def _spread(
    engine: Engine, encode: Any, encoders: EncoderSet, modality: str, cells: Sequence[Any], batch_size: int
) -> Iterator[tuple[int, Any]]:
    starts = range(0, len(cells), batch_size)
    batches = (list(cells[start : start + batch_size]) for start in starts)
    return zip(starts, engine.map(encode, batches, encoders, modality, device=encoders.device), strict=True)


def _files(batch: list[Cell], encoders: EncoderSet, modality: str) -> list[np.ndarray | Unreadable]:
    return [vector for _, vectors in encoders.encode_files(modality, batch) for vector in vectors]


def _texts(batch: list[Sequence[str]], encoders: EncoderSet, modality: str) -> np.ndarray:
    return encoders.encode_texts(modality, batch)
