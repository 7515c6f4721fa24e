"""Write a feature directory piece by piece; a killed run continues and ends with the same bytes.

Everything is built in `<path>.part` and renamed at the end, so that `<path>` is either absent or complete. A file in
there says of every (modality, row): not yet written, missing, observed, or imputed. It is updated after the values have
reached the disk. `FeatureFiles` are the arrays themselves, into which the workers of an engine write rows of their own;
`FeatureWriter` lays them out, keeps that file, and finishes the directory.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.engine import Engine, LocalEngine
from calmrl._support.filesystem import check_space, locked, put_in_place, scratch
from calmrl._support.output import check_writable, checksum, write_json, writing
from calmrl._support.parsing import read_json_object
from calmrl.arrays import Array, blocks_of_rows, check, check_names, to_tensor
from calmrl.data.features.directory import (
    FORMAT,
    HEADER,
    RESERVED,
    VERSION,
    empty_npy,
    meta_table,
    open_npy,
    same_table,
    write_rows,
)
from calmrl.data.features.feature_set import FeatureSet, open_features, part_of, read_table
from calmrl.errors import InputError

STATE = "rows.state.npy"  # no modality can have this name, for the dot
TODO, MISSING, OBSERVED, IMPUTED = range(4)


@dataclass(frozen=True)
class FeatureFiles:
    """The arrays of an unfinished feature directory; small enough to be sent with every task of an engine."""

    folder: Path
    widths: dict[str, int]
    rows: int
    dtype: np.dtype
    std: bool = False
    holes: bool = False  # whether rows may be NaN in single entries

    def value_files(self) -> dict[str, int]:
        """File name -> width, of all arrays of features."""
        files = {f"{name}.npy": width for name, width in self.widths.items()}
        return files | ({f"{name}.std.npy": width for name, width in self.widths.items()} if self.std else {})

    def write(
        self, index: np.ndarray, z: Mapping[str, Array], kept: np.ndarray, std: Mapping[str, Array] | None = None
    ) -> None:
        """Write some rows of the modalities of `z`, NaN where `kept` (n, modalities of z) is not set.

        The values have reached the disk when this returns.
        """
        for j, name in enumerate(z):
            given = {f"{name}.npy": z[name]} | ({} if std is None else {f"{name}.std.npy": std[name]})
            for file, array in given.items():
                write_rows(self.folder / file, index, self._stored(name, array, kept[:, j], index), sync=True)

    def _stored(self, name: str, array: Array, kept: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The array as it is stored: NaN where nothing is kept, checked to be finite elsewhere."""
        if array.shape[1] != self.widths[name]:
            raise InputError(f"{name} has width {array.shape[1]} but this directory was begun with {self.widths[name]}")
        values = to_tensor(array).detach().cpu().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.where(kept[:, None], values, np.nan).astype(self.dtype)
        good = np.isfinite(values)
        if self.holes:
            good |= np.isnan(values)
        bad = np.flatnonzero(kept & ~good.all(axis=1))
        if len(bad):
            raise InputError(
                f"{name} has a value in row {index[bad[0]]} that is not finite or does not fit in {self.dtype}; repair "
                "it, or write with a wider dtype"
            )
        return values


class FeatureWriter:
    """Write the rows of a feature directory in any order; every (row, modality) must be written before `finish`.

    A writer that is opened again with the same arguments continues: `todo(modality)` are the rows that are left.
    Different arguments are an error.

    Parameters
    ----------
    path : str or Path
        The directory, which must not exist.
    widths : mapping of str to int
        Modality -> d.
    ids, split, labels, text, columns
        One entry per row; see `write_features`.
    dtype : {"float32", "float16", "float64"}
    std : bool
        Whether standard deviations are written as well.
    info : mapping, optional
        How the features are made, as JSON; kept in features.json.
    holes : bool
        Let rows be NaN in single entries, for `calmrl.workflows.impute`; otherwise that is an error.
    """

    def __init__(
        self,
        path: str | Path,
        widths: Mapping[str, int],
        ids: Iterable[Any],
        *,
        dtype: str = "float32",
        split: Iterable[Any] | None = None,
        labels: Iterable[Any] | None = None,
        text: Iterable[Any] | None = None,
        columns: Mapping[str, Iterable[Any]] | None = None,
        std: bool = False,
        info: Mapping[str, Any] | None = None,
        holes: bool = False,
    ) -> None:
        self.path = Path(path)
        self.part = part_of(self.path)
        self._held = ExitStack()  # the lock
        widths = {name: int(width) for name, width in widths.items()}
        check_names(list(widths))
        for name in widths:
            if name.casefold() in RESERVED:
                raise InputError(f'a modality cannot be called "{name}": a file of the directory is; rename it')
        if np.dtype(dtype) not in (np.float16, np.float32, np.float64):
            raise InputError(f"features are written as float16, float32 or float64; got dtype {np.dtype(dtype)}")
        self._check_free()
        names = list(ids)
        self.files = FeatureFiles(self.part.absolute(), widths, len(names), np.dtype(dtype), std, holes)
        table = meta_table(self.n, ids=names, split=split, labels=labels, text=text, columns=columns)
        self._head = {
            "format": FORMAT,
            "version": VERSION,
            "rows": self.n,
            "dtype": self.files.dtype.name,
            "modalities": self.widths,
            "std": std,
            "info": json.loads(json.dumps(dict(info or {}))),
        }
        check_writable(self.path)
        self._held.enter_context(locked(self.path))
        try:
            self._check_free()
            if not self.part.exists():
                self._begin(table)
            self.state = self._checked_state(table)
        except BaseException:
            self.close()
            raise

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.files.rows

    @property
    def widths(self) -> dict[str, int]:
        """Modality -> d."""
        return self.files.widths

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def todo(self, modality: str) -> np.ndarray:
        """The rows of this modality that are not written yet."""
        return np.flatnonzero(self.state[self._column(modality)] == TODO)

    def fill(
        self,
        rows: np.ndarray | slice,
        z: Mapping[str, Array],
        present: Array | None = None,
        *,
        imputed: Array | None = None,
        std: Mapping[str, Array] | None = None,
    ) -> None:
        """Write some rows of one or several modalities; `present` and `imputed` have one column per entry of `z`.

        `present` is what was observed (None: rows that are not NaN); `imputed` marks missing blocks that were imputed.
        What is neither becomes NaN. `std` holds standard deviations of the same shape as `z`.
        """
        index = np.arange(self.n)[rows]
        for name in z:
            self._column(name)
        if set(std or {}) != (set(z) if self.files.std else set()):
            wanted = "pass std for each modality of z" if self.files.std else "open the writer with std=True for std"
            raise InputError(wanted)
        views = check(z, present, values=present is None, empty_rows=True)
        if len(index) != len(views):
            raise InputError(f"{len(index)} rows were named but z has {len(views)} rows")
        if len(np.unique(index)) != len(index):
            raise InputError("a row was named twice in one call; name every row once")
        observed = views.present.cpu().numpy()
        kept = observed
        if imputed is not None:
            kept = observed | check(z, imputed, values=False, empty_rows=True).present.cpu().numpy()
        with writing(self.path):
            self.files.write(index, z, kept, std)
            self.mark(index, list(z), observed, kept)

    def mark(self, index: np.ndarray, names: Iterable[str], observed: np.ndarray, kept: np.ndarray) -> None:
        """Note that `files` hold these rows of some modalities; what is kept was observed, or imputed otherwise.

        `fill` does this itself. It is for rows that a worker has written.
        """
        state = np.where(observed, OBSERVED, np.where(kept, IMPUTED, MISSING)).astype(np.uint8)
        for j, name in enumerate(names):
            column = self._column(name)
            write_rows(self.part / STATE, index + column * self.n, state[:, j : j + 1])
            self.state[column, index] = state[:, j]

    def finish(self, engine: Engine | None = None) -> FeatureSet:
        """Write masks and checksums, give the directory its name, and open it; an engine may compute the checksums."""
        self.complete(engine)
        return open_features(self.path)

    def complete(self, engine: Engine | None = None) -> None:
        """All of `finish` but the opening: the directory is no longer this writer's."""
        for name in self.widths:
            left = self.todo(name)
            if len(left):
                raise InputError(
                    f"{len(left)} of {self.n} rows of {name} are not written yet (first: row {left[0]}); fill them, "
                    "with present=False for items that lack the modality"
                )
        with writing(self.path):
            self._write_rest(engine or LocalEngine())
            self._check_free()
            put_in_place(self.part, self.path)
        self.close()

    def _write_rest(self, engine: Engine) -> None:
        """Masks, and checksums of all files."""
        np.save(self.part / "present.npy", np.ascontiguousarray((self.state == OBSERVED).T))
        if (self.state == IMPUTED).any():
            np.save(self.part / "imputed.npy", np.ascontiguousarray((self.state == IMPUTED).T))
        files = sorted(file for file in self.part.absolute().iterdir() if file.suffix in (".npy", ".parquet"))
        files = [file for file in files if file.name != STATE]
        sums = zip(files, engine.map(checksum, files), strict=True)
        written = {file.name: {"bytes": file.stat().st_size, "sha256": found} for file, found in sums}
        write_json(self.part / HEADER, self._head | {"files": written})
        (self.part / STATE).unlink(missing_ok=True)

    def close(self) -> None:
        """Give up the lock; what was filled stays, and a new writer continues."""
        self._held.close()

    def discard(self) -> None:
        """Delete what was filled, and give up the lock."""
        shutil.rmtree(self.part)
        self.close()

    def _check_free(self) -> None:
        try:
            taken = self.path.exists() and not (self.path.is_dir() and not any(self.path.iterdir()))
        except FileNotFoundError:  # another process took it away between the two looks
            taken = False
        if taken:
            raise InputError(f"{self.path} exists; remove it or choose another place")

    def _begin(self, table: pa.Table) -> None:
        """Lay out the unfinished directory; it gets its name only when everything in it is there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        arrays, masks = sum(self.files.value_files().values()) * self.files.dtype.itemsize, 2 * len(self.widths)
        check_space(self.path.parent, self.n * (arrays + masks), self.path)
        with writing(self.path), scratch(self.part) as folder:
            fresh = folder / "new"
            fresh.mkdir()
            for file, width in self.files.value_files().items():
                empty_npy(fresh / file, (self.n, width), self.files.dtype)
            np.save(fresh / STATE, np.full((len(self.widths), self.n), TODO, dtype=np.uint8))
            pq.write_table(table, fresh / "meta.parquet")
            write_json(fresh / HEADER, self._head)
            os.replace(fresh, self.part)

    def _checked_state(self, table: pa.Table) -> np.ndarray:
        """The state of the unfinished directory, after checking that it was begun with the same arguments."""
        unfinished = "delete the unfinished directory to start over"
        begun = read_json_object(self.part / HEADER, unfinished)
        differs = [key for key in self._head if _as_text(begun.get(key)) != _as_text(self._head[key])]
        if not differs and list(begun["modalities"]) != list(self.widths):
            differs = ["order of the modalities"]
        if not differs and not same_table(read_table(self.part / "meta.parquet"), table):
            differs = ["ids, split, labels, text or columns"]
        if differs:
            raise InputError(
                f"{self.part} was begun with other arguments ({', '.join(differs)} differ); delete it to start over, or "
                "write to another place"
            )
        if (self.part / STATE).exists():
            return np.array(self._mask(STATE, (len(self.widths), self.n), np.dtype(np.uint8)))
        shape = (self.n, len(self.widths))
        state = np.where(self._mask("present.npy", shape).T, OBSERVED, MISSING)  # stopped just before the renaming
        if (self.part / "imputed.npy").exists():
            state[self._mask("imputed.npy", shape).T] = IMPUTED
        return state.astype(np.uint8)

    def _mask(self, name: str, shape: tuple[int, int], dtype: np.dtype | None = None) -> np.ndarray:
        """An array of the unfinished directory that says which blocks are there."""
        mask = open_npy(self.part / name)
        if mask.shape != shape or mask.dtype != (dtype or bool):
            raise InputError(
                f"{self.part / name} holds {mask.dtype} of shape {mask.shape}; {shape} was begun. Delete "
                f"{self.part} to start over"
            )
        return mask

    def _column(self, modality: str) -> int:
        if modality not in self.widths:
            raise InputError(f'this directory has no modality "{modality}"; it has {", ".join(self.widths)}')
        return list(self.widths).index(modality)


def _as_text(value: Any) -> str:
    """JSON that can be compared; not-a-number is then the same as not-a-number."""
    return json.dumps(value, sort_keys=True)


def write_features(
    path: str | Path,
    z: Mapping[str, Array],
    present: Array | None = None,
    *,
    ids: Iterable[Any] | None = None,
    split: Iterable[Any] | None = None,
    labels: Iterable[Any] | None = None,
    text: Iterable[Any] | None = None,
    columns: Mapping[str, Iterable[Any]] | None = None,
    imputed: Array | None = None,
    std: Mapping[str, Array] | None = None,
    dtype: str | None = None,
    info: Mapping[str, Any] | None = None,
    holes: bool = False,
) -> FeatureSet:
    """Write arrays (memory-mapped ones too) as a feature directory, in blocks.

    Parameters
    ----------
    path : str or Path
        The directory, which must not exist.
    z : mapping of str to array (N, d)
        Modality -> features.
    present : array of bool (N, k), optional
        What was observed; by default the rows that are not NaN.
    ids, split, labels, text : iterable, optional
        One entry per row; labels and text may be lists. Without ids rows are called "0", "1", ...
    columns : mapping of str to iterable, optional
        Further columns of the table of rows.
    imputed : array of bool (N, k), optional
        Missing blocks whose values in `z` were imputed.
    std : mapping of str to array (N, d), optional
        Standard deviations of what was imputed.
    dtype : str, optional
        By default that of the arrays.
    info : mapping, optional
        How the features were made, as JSON.
    holes : bool
        Let rows be NaN in single entries, for `calmrl.workflows.impute`; otherwise that is an error.

    Returns
    -------
    FeatureSet
        The directory, opened.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> folder = tempfile.mkdtemp() + "/features"
    >>> written = write_features(folder, {"image": np.ones((2, 3)), "text": np.array([[1.0], [np.nan]])})
    >>> open_features(folder).present.tolist()
    [[True, True], [True, False]]
    """
    views = check(z, present, values=present is None, empty_rows=True, holes=holes)
    kept = views.present.cpu().numpy()
    if dtype is None:
        dtype = np.result_type(*(to_tensor(array[:0]).cpu().numpy().dtype for array in z.values())).name
    widths = {name: array.shape[1] for name, array in z.items()}
    names = [str(row) for row in range(len(kept))] if ids is None else list(ids)
    if len(names) != len(kept):
        raise InputError(f"there are {len(names)} ids but z has {len(kept)} rows; pass one id per row")
    about: dict[str, Any] = {"split": split, "labels": labels, "text": text, "columns": columns, "info": info}
    about["holes"] = holes
    with FeatureWriter(path, widths, names, dtype=dtype, std=std is not None, **about) as writer:
        try:
            for start, stop in blocks_of_rows(writer.n, sum(widths.values()) * 4):
                writer.fill(
                    slice(start, stop),
                    {name: array[start:stop] for name, array in z.items()},
                    kept[start:stop],
                    imputed=None if imputed is None else imputed[start:stop],
                    std=None if std is None else {name: array[start:stop] for name, array in std.items()},
                )
            writer.complete()
        except InputError:  # of the values, or of the disk; an interrupted run, in contrast, can be continued
            writer.discard()
            raise
    return open_features(path)
