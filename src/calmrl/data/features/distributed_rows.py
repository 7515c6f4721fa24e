"""Rows that are gone through block by block, by whatever engine. Of a feature directory only the path travels.

A worker opens the directory itself and maps the rows of its block into memory. Blocks have a fixed size, so that sums over
them, added in their order, do not depend on how many workers there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.engine import Engine
from calmrl.arrays import Views, blocks_of_rows, release, to_tensor
from calmrl.data.features.directory import DirectoryFiles, open_npy
from calmrl.errors import InputError

BLOCK_BYTES = 1 << 26  # rows are read in blocks of about this size


@dataclass(frozen=True)
class StoredRows:
    """Where rows and their mask are; small enough to be sent with every task."""

    path: str
    names: tuple[str, ...]
    widths: tuple[int, ...]
    rows: int
    mask_file: str  # (rows, k) bool: what is used of the rows
    held: dict[str, np.ndarray] | None = None  # the arrays, for work in this process; else they are at `path`
    holes: frozenset[str] = frozenset()  # modalities with NaN entries in rows that are used

    def arrays(self) -> dict[str, np.ndarray]:
        """Modality -> (rows, width), memory-mapped unless they are held."""
        return _opened(self.path) if self.held is None else self.held

    def mask(self) -> np.ndarray:
        """(rows, k), memory-mapped."""
        return open_npy(Path(self.mask_file))

    def views(self, start: int, stop: int) -> Views:
        """Some rows; their values are read when they are used."""
        z = {name: array[start:stop] for name, array in self.arrays().items()}
        return Views(z, to_tensor(np.array(self.mask()[start:stop])), self.widths, self.holes)

    def release(self) -> None:
        """Give back the pages that were read."""
        for array in self.arrays().values():
            release(array)

    def blocks(self) -> list[tuple[int, int]]:
        """(start, stop) of blocks of about BLOCK_BYTES."""
        row_bytes = sum(array.shape[1] * array.dtype.itemsize for array in self.arrays().values())
        return list(blocks_of_rows(self.rows, row_bytes, BLOCK_BYTES))


def stored_rows(path: str | Path, mask_file: str | Path) -> StoredRows:
    """The rows of a feature directory; files that are cut off or do not fit together are an error that names them."""
    place = str(Path(path).absolute())
    _opened.cache_clear()  # the directory may have been replaced
    arrays = _opened(place)
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        listed = ", ".join(f"{name}: {count}" for name, count in rows.items())
        raise InputError(f"{path}: modalities differ in their number of rows ({listed}); copy or write it again")
    widths = tuple(array.shape[1] for array in arrays.values())
    return StoredRows(place, tuple(arrays), widths, next(iter(rows.values())), str(Path(mask_file).absolute()))


@lru_cache(maxsize=4)
def _opened(path: str) -> dict[str, np.ndarray]:
    files = DirectoryFiles(Path(path))
    return {name: files.values(name) for name in files.names}


class DistributedRows(Mapping[str, np.ndarray], ABC):
    """A `z` with an engine that goes through its rows.

    A mapping of modality -> array, which whoever needs few rows reads as any other; `each` is for all rows. Values must
    have been checked.
    """

    checked = True
    engine: Engine
    names: tuple[str, ...]
    widths: tuple[int, ...]
    holes: frozenset[str] = frozenset()  # modalities with NaN entries in rows that are used
    keep: Path | None = None  # a folder for what a fit must not lose: one that is started again resumes from there

    @abstractmethod
    def each(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """function(views of a block, *shared) for every block, in order."""

    @abstractmethod
    def views(self) -> Iterator[Views]:
        """Every block, opened here."""

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class DistributedDirectory(DistributedRows):
    """The rows of a feature directory. Workers open it themselves."""

    def __init__(self, store: StoredRows, engine: Engine, keep: Path | None = None) -> None:
        self.store, self.engine, self.keep = store, engine, keep
        self.names, self.widths, self.holes = store.names, store.widths, store.holes
        self.blocks = store.blocks()

    def __getitem__(self, name: str) -> np.ndarray:
        return self.store.arrays()[name]

    def each(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """function(views of a block, *shared) for every block, in order."""
        return self.engine.map(_on_block, self.blocks, self.store, function, *shared)

    def views(self) -> Iterator[Views]:
        """Every block, opened here."""
        for start, stop in self.blocks:
            yield self.store.views(start, stop)
            self.store.release()


class DistributedArrays(DistributedRows):
    """Rows of arrays that this process has; they travel to the workers block by block."""

    def __init__(self, z: Mapping[str, np.ndarray], present: np.ndarray, engine: Engine) -> None:
        self.arrays, self.present, self.engine = dict(z), present, engine
        self.names, self.widths = tuple(z), tuple(array.shape[1] for array in z.values())

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def ordered(self, names: list[str]) -> DistributedArrays:
        """The same rows with the modalities in this order."""
        columns = [self.names.index(name) for name in names]
        return DistributedArrays({name: self.arrays[name] for name in names}, self.present[:, columns], self.engine)

    def each(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """function(views of a block, *shared) for every block, in order."""
        return self.engine.map(_on_views, self.views(), function, *shared)

    def views(self) -> Iterator[Views]:
        """Every block, as plain arrays."""
        row_bytes = sum(array.shape[1] * array.dtype.itemsize for array in self.arrays.values())
        for start, stop in blocks_of_rows(len(self.present), row_bytes, BLOCK_BYTES):
            z = {name: np.array(array[start:stop]) for name, array in self.arrays.items()}
            yield Views(z, to_tensor(np.array(self.present[start:stop])), self.widths)


def _on_block(block: tuple[int, int], store: StoredRows, function: Callable[..., Any], *shared: Any) -> Any:
    try:
        return function(store.views(*block), *shared)
    finally:
        store.release()


def _on_views(views: Views, function: Callable[..., Any], *shared: Any) -> Any:
    return function(views, *shared)
