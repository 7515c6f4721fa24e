"""Features on disk: a directory with one memory-mappable `<modality>.npy` per modality.

| file | holds |
|---|---|
| `<modality>.npy` | (N, d) floats; a missing row is NaN |
| `present.npy` | (N, k) bool: what was observed, one column per modality |
| `meta.parquet` | id, split, labels, text and any other columns |
| `imputed.npy`, `<modality>.std.npy` | only after imputing: which blocks were imputed, and their standard deviations |
| `features.json` | format version, order of the modalities, widths, dtype, checksums, and how the features were made |

`features.json` may be absent in a directory made by hand: then the modalities are in alphabetical order.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from calmrl._support.filesystem import read_steadily
from calmrl._support.output import checksum
from calmrl._support.parsing import naming, parsing
from calmrl.arrays import check
from calmrl.data.features.directory import HEADER, DirectoryFiles, check_ids, column_values, meta_table, read_header
from calmrl.errors import InputError


class FeatureSet:
    """Aligned features: `z`, `present`, and what is known about each row.

    `ids`, `split`, `labels` and `text` have one entry per row and are read when first asked for; all but `ids` are
    None where unknown.

    Parameters
    ----------
    z : dict of str to ndarray (N, d)
        Modality -> features.
    present : ndarray of bool (N, k), optional
        What was observed; by default the rows that are not NaN.
    meta : pyarrow.Table or function that returns one, optional
        The columns id, split, labels, text and any others.
    imputed, std : ndarray of bool (N, k) and dict of str to ndarray (N, d), optional
        Which missing blocks were imputed, and the standard deviations of their entries.
    name, source, info, path
        Where the features come from.
    holes : bool
        Let rows be NaN in single entries, for `calmrl.workflows.impute`; otherwise a row that is partly NaN is an error.

    Examples
    --------
    >>> import numpy as np
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0], [np.nan]])}, name="two items")
    >>> features.present.tolist()
    [[True, True], [True, False]]
    """

    def __init__(
        self,
        z: dict[str, np.ndarray],
        present: np.ndarray | None = None,
        meta: pa.Table | Callable[[], pa.Table] | None = None,
        *,
        imputed: np.ndarray | None = None,
        std: dict[str, np.ndarray] | None = None,
        name: str = "",
        source: str = "",
        info: dict[str, Any] | None = None,
        path: Path | None = None,
        holes: bool = False,
    ) -> None:
        views = check(z, present, values=present is None, empty_rows=True, holes=holes)
        self.z = z
        self.present: np.ndarray = views.present.numpy() if present is None else present
        self.imputed = imputed
        self.std = std
        self.name = name
        self.source = source
        self.info = info or {}
        self.path = path
        self._meta = meta

    def __len__(self) -> int:
        return len(self.present)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{name} {array.shape[1]} ({count} of {len(self)})"
            for (name, array), count in zip(self.z.items(), self.present.sum(axis=0), strict=True)
        )
        return f"FeatureSet({self.name or self.path or 'in memory'}: {len(self)} rows; {parts})"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.z)

    @cached_property
    def meta(self) -> pa.Table:
        """The table behind `ids`, `split`, `labels`, `text` and `column`."""
        table = self._meta() if callable(self._meta) else self._meta
        return checked_table(table, len(self), self.path or self.source)

    def column(self, name: str) -> np.ndarray:
        """One column of `meta`, by name."""
        if name not in self.meta.column_names:
            raise InputError(f'no column "{name}"; there are {", ".join(self.meta.column_names)}')
        return column_values(self.meta, name)

    @cached_property
    def ids(self) -> np.ndarray:
        return np.array([str(value) for value in self.column("id")], dtype=object)

    @cached_property
    def split(self) -> np.ndarray | None:
        return self._optional("split")

    @cached_property
    def labels(self) -> np.ndarray | None:
        return self._optional("labels")

    @cached_property
    def text(self) -> np.ndarray | None:
        return self._optional("text")

    def select(self, rows: str | np.ndarray) -> FeatureSet:
        """These rows, in memory: a split by name ("train"), a bool mask, or row numbers."""
        index = self.row_numbers(rows)
        return FeatureSet(
            {name: np.asarray(array[index]) for name, array in self.z.items()},
            np.asarray(self.present[index]),
            self.meta.take(pa.array(index)),
            imputed=None if self.imputed is None else np.asarray(self.imputed[index]),
            std=None if self.std is None else {name: np.asarray(array[index]) for name, array in self.std.items()},
            name=self.name,
            source=self.source,
            info=self.info,
        )

    def row_numbers(self, rows: str | np.ndarray) -> np.ndarray:
        """The numbers of rows given as a split by name, a bool mask, or row numbers."""
        if isinstance(rows, str):
            if self.split is None:
                raise InputError(f'rows of split "{rows}" were asked for, but these features have no split column')
            if rows not in self.split:
                splits = ", ".join(sorted({str(value) for value in self.split}))
                raise InputError(f'no row has split "{rows}"; there are {splits}')
            rows = self.split == rows
        index = np.asarray(rows)
        if index.dtype == bool:
            if index.shape != (len(self),):
                raise InputError(f"rows is a mask of shape {index.shape} but there are {len(self)} rows")
            return np.flatnonzero(index)
        if not len(index):
            return index
        if not -len(self) <= index.min() <= index.max() < len(self):
            raise InputError(f"rows must lie between 0 and {len(self) - 1}; got {index.min()} to {index.max()}")
        return index % len(self)  # negative ones count from the end

    def verify(self) -> None:
        """Read every file again and compare it with its checksum; raise InputError naming all that differ."""
        if self.path is None or not (self.path / HEADER).is_file():
            raise InputError("only a feature directory with a features.json has checksums to verify")
        files = read_header(self.path)["files"]
        bad = [name for name, written in files.items() if checksum(self.path / name) != written["sha256"]]
        if bad:
            raise InputError(f"{self.path}: {', '.join(bad)} changed after writing (checksum differs); copy it again")
        _ = self.ids  # the table of rows fits and its ids are distinct

    def _optional(self, name: str) -> np.ndarray | None:
        return self.column(name) if name in self.meta.column_names else None


def open_features(path: str | Path, modalities: Sequence[str] | None = None, *, holes: bool = False) -> FeatureSet:
    """Open a feature directory (memory-mapped), or read a file of one of `calmrl.data.features.formats.FORMATS`.

    Parameters
    ----------
    path : str or Path
        A directory, or a `.npz`, `.safetensors` or `.parquet` file.
    modalities : sequence of str, optional
        The modalities wanted, in that order; all by default.
    holes : bool
        Let rows be NaN in single entries, for `calmrl.workflows.impute`; otherwise a row that is partly NaN is an error.

    Examples
    --------
    >>> features = open_features("features")  # doctest: +SKIP
    >>> features.z["image"], features.present, features.ids  # doctest: +SKIP
    """
    where = Path(path)
    return read_steadily(where, lambda: _open(where, modalities, holes))


def _open(path: Path, modalities: Sequence[str] | None, holes: bool) -> FeatureSet:
    if not path.exists():
        part = part_of(path)
        hint = f"; {part.name} beside it is unfinished: run the same command again to finish it"
        raise InputError(f"no features at {path}{hint if part.exists() else ''}")
    if path.is_dir():
        with naming(path):
            return _open_directory(path, modalities, holes)
    from calmrl.data.features.formats import FORMATS

    if path.suffix not in FORMATS:
        raise InputError(f"{path} has suffix {path.suffix!r}; features are a directory or one of {', '.join(FORMATS)}")
    with naming(path):
        read = FORMATS[path.suffix]
        takes = holes and "holes" in inspect.signature(read).parameters
        return read(path, modalities, holes=True) if takes else read(path, modalities)


def part_of(path: Path) -> Path:
    """Where a feature directory is built up before it gets its name."""
    return path.with_name(path.name + ".part")


def pick(names: Sequence[str], wanted: Sequence[str] | None, where: Path | str) -> list[int]:
    """The columns of the wanted modalities."""
    if wanted is None:
        return list(range(len(names)))
    for name in wanted:
        if name not in names:
            raise InputError(f'{where} has no modality "{name}"; it has {", ".join(names)}')
    return [list(names).index(name) for name in wanted]


def _open_directory(path: Path, modalities: Sequence[str] | None, holes: bool) -> FeatureSet:
    files = DirectoryFiles(path)
    columns = pick(files.names, modalities, path)
    z = {files.names[j]: files.values(files.names[j]) for j in columns}
    rows = len(next(iter(z.values()))) if z else 0

    def mask(name: str, needed: bool = False) -> np.ndarray | None:
        there = needed or (path / name).exists()
        return np.ascontiguousarray(files.mask(name, rows)[:, columns]) if there else None

    with_std = [name for name in z if (path / f"{name}.std.npy").exists()]
    table = path / "meta.parquet"
    return FeatureSet(
        z,
        mask("present.npy", files.header is not None),
        (lambda: read_table(table)) if files.header is not None or table.exists() else None,
        imputed=mask("imputed.npy"),
        std={name: files.std(name, z[name]) for name in with_std} or None,
        name=path.name,
        source=str(path),
        info=None if files.header is None else files.header["info"],
        path=path,
        holes=holes,
    )


def read_table(path: Path) -> pa.Table:
    """A Parquet file as a table, or an error that names it."""
    if not path.exists():
        raise InputError(f"{path} is missing; the directory is incomplete, copy or write it again")
    with parsing(path, "Parquet"):
        table = pq.read_table(path)
        table.validate(full=True)
        return table


def checked_table(table: pa.Table | None, rows: int, where: object = "") -> pa.Table:
    """The table of so many rows, which have distinct ids; without a table, or ids in it, rows are called "0", "1", ..."""
    if table is None:
        return meta_table(rows)
    if table.num_rows != rows:
        raise InputError(
            f"{where or 'meta'}: the table of rows (meta.parquet) has {table.num_rows} rows but the features have {rows}; "
            "both must describe the same rows"
        )
    if "id" not in table.column_names:
        return table.append_column("id", pa.array([str(row) for row in range(rows)]))
    with naming(where or "meta"):
        check_ids([str(value) for value in table["id"].to_pylist()])
    return table


ROW = "id"  # the row itself


def relevance_of(features: FeatureSet, by: str = ROW) -> np.ndarray | None:
    """One value per row: rows with the same value are relevant to each other; None where that is the row alone.

    A row without a value in the column stands for itself.

    Parameters
    ----------
    features : FeatureSet
    by : str
        "id", "text", "labels" or another column of `features.meta`.
    """
    if by == ROW:
        return None
    keys = np.empty(len(features), dtype=object)
    for row, value in enumerate(relevance_texts(features.column(by))):
        keys[row] = ("row", row) if value is None else ("value", value)
    return keys


def relevance_texts(values: Iterable[Any]) -> list[str | None]:
    """Each value as a text, None where there is none; several captions are the same where all of them are."""
    return [_text(value) if _given(value) else None for value in values]


def _given(value: Any) -> bool:
    if isinstance(value, (str, bytes, list, tuple, np.ndarray)):
        return len(value) > 0
    return value is not None and value == value  # NaN is not itself


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple, np.ndarray)) else str(value)


FILE_COLUMN = "file."


def file_columns(cells: Iterable[Mapping[str, str]], out: Path) -> dict[str, list[str | None]]:
    """The columns `file.MODALITY` of items whose cells are paths; None where an item has no such file.

    Examples
    --------
    >>> file_columns([{"image": "photos/a.png"}, {}], Path("work/features"))
    {'file.image': ['../../photos/a.png', None]}
    """
    rows = list(cells)
    names = dict.fromkeys(name for row in rows for name in row)
    start = out.absolute()
    return {
        FILE_COLUMN + name: [
            Path(os.path.relpath(row[name], start)).as_posix() if name in row else None for row in rows
        ]
        for name in names
    }


def files_of(features: FeatureSet, row: int) -> dict[str, Path]:
    """Modality -> the file that a row was made from, if the features record files and these still exist."""
    if features.path is None:
        return {}
    paths = {}
    for column in features.meta.column_names:
        cell = features.meta[column][row].as_py() if column.startswith(FILE_COLUMN) else None
        if cell is not None and (features.path / cell).is_file():
            paths[column.removeprefix(FILE_COLUMN)] = features.path / cell
    return paths
