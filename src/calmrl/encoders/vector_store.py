"""Encode with a cache: vectors are kept by what they were made from, so that a run that was stopped continues.

`encode_new` encodes what a `VectorStore` lacks. A folder of stores holds for every modality a file of float32 rows and a file
of keys, a line per row, written after the row has reached the disk. `encoders.json` says which encoders made them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine, LocalEngine
from calmrl._support.output import write_json
from calmrl._support.parsing import read_json_object
from calmrl.data.media.jobs import Segmented
from calmrl.data.media.problems import Unreadable
from calmrl.encoders.encoder_set import BATCH, Cell, EncoderSet, mean_of, same_signature
from calmrl.errors import InputError
from calmrl.protocols import Progress, no_progress

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

    def add_segments(self, key: str, spans: np.ndarray, vectors: Any) -> None:
        """Segments of a video, as rows of begin, end and vector, under its key and their numbers."""
        numbers = [i for i in range(len(spans)) if _numbered(key, i) not in self]
        if numbers:
            rows = np.column_stack([spans, np.asarray(vectors)])
            self.add([_numbered(key, i) for i in numbers], rows[numbers])

    def segments(self, key: str) -> np.ndarray:
        """Those rows, (n, width); none for what has no segments."""
        return self.get(list(takewhile(self.__contains__, (_numbered(key, i) for i in count()))))

    def means(self, groups: Sequence[Sequence[str]]) -> np.ndarray:
        """The mean (n, width) of the vectors of each group of keys; no group is empty."""
        vectors = self.get([key for group in groups for key in group])
        if len(vectors) == len(groups):
            return vectors
        ends = np.cumsum([len(group) for group in groups])
        return np.stack([mean_of(rows) for rows in np.split(vectors, ends[:-1])])


def _numbered(key: str, number: int) -> str:
    return text_key(f"{key} {number}")


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
                "start over, or choose another `out`"
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


def encode_new(
    encoders: EncoderSet,
    modality: str,
    cells: Mapping[str, Cell],
    store: VectorStore,
    *,
    batch_size: int = BATCH,
    pool: Executor | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    segments: tuple[float, VectorStore] | None = None,
) -> dict[str, Unreadable]:
    """Encode what a store lacks, batch by batch: a run that was stopped continues with the batches that are there.

    Parameters
    ----------
    encoders : EncoderSet
    modality : str
    cells : mapping of str to Cell
        Key -> a list of texts, or a file.
    store : VectorStore
        Takes the vectors.
    batch_size : int
    pool : Executor, optional
        Processes that decode.
    engine : Engine, optional
        Takes the place of this process and of the pool.
    progress : callable, optional
        Called with (what is being done, done so far, of how many).
    segments : (float, VectorStore), optional
        Seconds of the segments of videos, and what takes them.

    Returns
    -------
    dict of str to Unreadable
        What cannot be decoded, by key.
    """
    if not cells:
        return {}
    report = progress or no_progress
    todo = [key for key in cells if key not in store]
    before, unreadable = len(cells) - len(todo), dict[str, Unreadable]()
    report(before, len(cells), f"encode {modality}")
    cut = 0.0 if segments is None else segments[0]
    for first, results in _encoded(encoders, modality, [cells[key] for key in todo], batch_size, pool, engine, cut):
        good: dict[str, np.ndarray] = {}
        for key, result in zip(todo[first : first + len(results)], results, strict=True):
            if isinstance(result, Unreadable):
                unreadable[key] = result
            elif isinstance(result, Segmented):
                if segments is not None:  # before the whole, so that a key of this means that they are complete
                    segments[1].add_segments(key, result.spans, result.parts)
                good[key] = result.whole
            else:
                good[key] = result
        if good:
            store.add(list(good), np.stack(list(good.values())))
        report(before + first + len(results), len(cells), f"encode {modality}")
    return unreadable


def _encoded(
    encoders: EncoderSet,
    modality: str,
    cells: list[Cell],
    batch_size: int,
    pool: Executor | None,
    engine: Engine | None,
    segments: float,
) -> Iterator[tuple[int, Sequence[np.ndarray | Segmented | Unreadable]]]:
    """(number of the first cell, a vector or an Unreadable for each) of every batch."""
    is_text = encoders.kind(modality) == "text"
    if engine is None and not is_text:
        return encoders.encode_files(modality, cells, pool=pool, batch_size=batch_size, segments=segments)
    if not is_text:  # workers decode, wherever they run
        cells = [os.path.abspath(cell) if isinstance(cell, (str, os.PathLike)) else cell for cell in cells]
    starts = range(0, len(cells), batch_size)
    batches = (cells[start : start + batch_size] for start in starts)
    encode, shared = (_encode_texts, ()) if is_text else (_encode_files, (segments,))
    results = (engine or LocalEngine()).map(encode, batches, encoders, modality, *shared, device=encoders.device)
    return zip(starts, results, strict=True)


def _encode_files(
    batch: list[Cell], encoders: EncoderSet, modality: str, segments: float
) -> list[np.ndarray | Segmented | Unreadable]:
    results = encoders.encode_files(modality, batch, segments=segments)
    return [vector for _, vectors in results for vector in vectors]


def _encode_texts(batch: list[Sequence[str]], encoders: EncoderSet, modality: str) -> np.ndarray:
    return encoders.encode_texts(modality, batch)
