"""Vectors by content, on disk, so that work that was killed goes on: two files that only grow.

`vectors.f32` holds rows of `width` float32, `keys.txt` the SHA-256 of what each row was made from, a line each. A key is
written after its vector has reached the disk, so that a vector with a key is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

LINE = 65  # 64 hex digits and the end of the line


class VectorCache:
    """A mapping of SHA-256 (as hex) to vectors of one width.

    Parameters
    ----------
    folder : Path
        Where the two files are; made if it is not there.
    width : int
        Length of the vectors.
    """

    def __init__(self, folder: Path, width: int) -> None:
        self.width = width
        folder.mkdir(parents=True, exist_ok=True)
        self._vectors, self._keys = folder / "vectors.f32", folder / "keys.txt"
        for file in (self._vectors, self._keys):
            file.touch()
        rows = min(self._vectors.stat().st_size // (4 * width), self._keys.stat().st_size // LINE)
        os.truncate(self._vectors, rows * 4 * width)  # what was cut off in the middle is made again
        os.truncate(self._keys, rows * LINE)
        self._row = {key: row for row, key in enumerate(self._keys.read_text("ascii").split())}
        self._rows = rows

    def __contains__(self, key: str) -> bool:
        return key in self._row

    def __len__(self) -> int:
        return len(self._row)

    def add(self, keys: Sequence[str], vectors: np.ndarray) -> None:
        """Keep vectors (n, width) under their keys."""
        if vectors.shape != (len(keys), self.width):
            raise ValueError(f"{len(keys)} keys for vectors of shape {vectors.shape} in a cache of width {self.width}")
        _append(self._vectors, np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        _append(self._keys, "".join(f"{key}\n" for key in keys).encode("ascii"))
        for key in keys:
            self._row[key] = self._rows
            self._rows += 1

    def take(self, keys: Iterable[str]) -> np.ndarray:
        """The vectors of these keys, (n, width) float32."""
        rows = [self._row[key] for key in keys]
        if not rows:
            return np.zeros((0, self.width), np.float32)
        return np.memmap(self._vectors, dtype="<f4", mode="r").reshape(-1, self.width)[rows].astype(np.float32)


def _append(file: Path, content: bytes) -> None:
    with file.open("ab") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
