"""A feature directory that many processes write: each opens the files, writes the rows of its block, and closes them.

Whoever begins the draft also ends it. A block that is written twice holds the same bytes as one that is written once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from calmrl._support.engine import Engine
from calmrl._support.filesystem import check_space
from calmrl._support.sealed import checksum
from calmrl.convention import Array, to_tensor
from calmrl.data.features.files import empty_npy, save_json, write_all
from calmrl.data.features.header import FILE, FORMAT, VERSION
from calmrl.errors import InputError

MASKS = ("present.npy", "imputed.npy")


def stored_values(name: str, array: Array, kept: np.ndarray, index: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array as it is stored: NaN where nothing is kept, checked to be finite elsewhere."""
    values = to_tensor(array).detach().cpu().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.where(kept[:, None], values, np.nan).astype(dtype)
    bad = np.flatnonzero(kept & ~np.isfinite(values).all(axis=1))
    if len(bad):
        raise InputError(
            f"{name} has a value in row {index[bad[0]]} that is not finite or does not fit in {dtype}; repair "
            "it, or write with a wider dtype"
        )
    return values


@dataclass(frozen=True)
class DraftFiles:
    """The files of a feature directory of `rows` rows, below `folder`; small enough to be sent with every task."""

    folder: str
    widths: dict[str, int]
    rows: int
    dtype: str
    std: bool = False

    def begin(self, table: Path) -> None:
        """Lay out files without values, and copy the table of rows."""
        folder = Path(self.folder)
        kinds = 2 if self.std else 1
        size = self.rows * (sum(self.widths.values()) * np.dtype(self.dtype).itemsize * kinds + 2 * len(self.widths))
        check_space(folder, size, folder.parent)
        for file, width in self._value_files().items():
            empty_npy(folder / file, (self.rows, width), np.dtype(self.dtype))
        for file in MASKS:
            empty_npy(folder / file, (self.rows, len(self.widths)), np.dtype(bool))
        shutil.copyfile(table, folder / "meta.parquet")

    def write_mask(self, file: str, start: int, mask: np.ndarray) -> None:
        """Rows of present.npy or imputed.npy."""
        self._write(file, start, np.ascontiguousarray(mask))

    def write_values(
        self, start: int, z: Mapping[str, Array], imputed: np.ndarray, std: Mapping[str, Array] | None
    ) -> None:
        """Rows of all modalities from row `start` on, all of them observed or imputed."""
        kept = np.ones(len(imputed), dtype=bool)
        index = np.arange(start, start + len(imputed))
        for name in self.widths:
            self._write(f"{name}.npy", start, stored_values(name, z[name], kept, index, np.dtype(self.dtype)))
            if std is not None:
                deviations = stored_values(name, std[name], kept, index, np.dtype(self.dtype))
                self._write(f"{name}.std.npy", start, deviations)
        self.write_mask("imputed.npy", start, imputed)

    def finish(self, info: Mapping[str, Any], engine: Engine, any_imputed: bool) -> None:
        """Write features.json with the checksums of all files, which are computed by the engine."""
        folder = Path(self.folder)
        if not any_imputed:
            (folder / "imputed.npy").unlink(missing_ok=True)
        files = sorted(file for file in folder.iterdir() if file.suffix in (".npy", ".parquet"))
        sums = engine.map(checksum, files)
        written = {file.name: {"bytes": file.stat().st_size, "sha256": s} for file, s in zip(files, sums, strict=True)}
        head = {"format": FORMAT, "version": VERSION, "rows": self.rows, "dtype": self.dtype}
        save_json(folder / FILE, head | {"modalities": self.widths, "std": self.std, "info": info, "files": written})

    def _value_files(self) -> dict[str, int]:
        """File name -> width, of all arrays of features."""
        files = {f"{name}.npy": width for name, width in self.widths.items()}
        return files | ({f"{name}.std.npy": width for name, width in self.widths.items()} if self.std else {})

    def _write(self, name: str, start: int, values: np.ndarray) -> None:
        with _rows_of(Path(self.folder) / name, start, values.shape[1] * values.itemsize) as file:
            write_all(file, values.data.cast("B"))


@contextmanager
def _rows_of(path: Path, start: int, row_bytes: int) -> Iterator[BinaryIO]:
    """A .npy file, opened at the first byte of a row."""
    with open(path, "r+b", buffering=0) as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        file.seek(file.tell() + start * row_bytes)
        yield file
