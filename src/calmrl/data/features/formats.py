"""Features in a single file, read into memory: a format is a function and its line in FORMATS.

Where a modality is itself called "text", the captions are the column "captions".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from calmrl._support.parsing import parsing
from calmrl.arrays import as_mask
from calmrl.data.features.directory import column_values, described, meta_table, read_npz_arrays
from calmrl.data.features.feature_set import FeatureSet, open_features, pick, read_table
from calmrl.data.features.tables import NUMBERED, description, from_arrow, gathered, is_vector, modality_names, vectors
from calmrl.data.features.writer import FeatureWriter, write_features
from calmrl.errors import InputError


def read_npz(path: Path, modalities: Sequence[str] | None, holes: bool = False) -> FeatureSet:
    """Arrays of two dimensions are modalities, in the file's order; `present`, `ids`, `split`, ... are optional."""
    arrays = read_npz_arrays(path)
    return _from_arrays(path, arrays, list(arrays), modalities, holes)


def read_safetensors(path: Path, modalities: Sequence[str] | None, holes: bool = False) -> FeatureSet:
    """Tensors of two dimensions are modalities; ids, split, labels, text are JSON lists in the file's metadata.

    The file does not keep the order of its tensors: "modalities" in the metadata (a JSON list) gives it, else it is
    alphabetical.
    """
    from safetensors import safe_open

    with parsing(path, ".safetensors"), safe_open(path, framework="pt") as file:
        arrays: dict[str, Any] = {name: _as_numpy(path, name, file.get_tensor(name)) for name in sorted(file.keys())}
        notes = {key: json.loads(value) for key, value in (file.metadata() or {}).items() if value[:1] == "["}
    if both := notes.keys() & arrays.keys():
        raise InputError(f'{path}: "{min(both)}" is both a tensor and an entry of its metadata; rename one')
    order = list(arrays)
    if "modalities" in notes:
        order = notes.pop("modalities")
        _check_order(path, order, arrays)
    return _from_arrays(path, arrays | notes, order, modalities, holes)


def _check_order(path: Path, order: list[Any], arrays: Mapping[str, Any]) -> None:
    """The modalities that metadata list are tensors of the file, each named once."""
    named = [name for name in order if isinstance(name, str)]
    wrong = [name for name in order if not isinstance(name, str) or not _is_matrix(arrays.get(name))]
    if wrong or len(set(named)) != len(order):
        what = f"{wrong[0]!r:.60}, which is no tensor of shape (rows, width) with floats" if wrong else "one twice"
        raise InputError(f'{path}: "modalities" in its metadata names {what}; the file has {", ".join(arrays)}')


def _as_numpy(path: Path, name: str, tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy()
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 2:
        raise InputError(f'{path}: "{name}" has dtype {tensor.dtype}; convert it, for instance to float16')
    return tensor.numpy()


def _from_arrays(
    path: Path, arrays: Mapping[str, Any], order: list[str], wanted: Sequence[str] | None, holes: bool
) -> FeatureSet:
    """Sort named arrays into modalities (two-dimensional floats), masks and columns (one-dimensional)."""
    masks = {key: as_mask(arrays[key], f'{path}: "{key}"') for key in ("present", "imputed") if key in arrays}
    names = [key for key in order if key not in masks and _is_matrix(arrays[key])]
    if not names:
        raise InputError(f"{path} has no array of shape (rows, width) with floats; it has {', '.join(arrays)}")
    for key, mask in masks.items():
        if mask.shape != (len(arrays[names[0]]), len(names)):
            raise InputError(
                f'{path}: "{key}" has shape {mask.shape} but there are {len(names)} modalities ({", ".join(names)}); '
                "it needs one column for each, in that order"
            )
    chosen = pick(names, wanted, path)
    n = len(arrays[names[0]])
    rest = {key: value for key, value in arrays.items() if key not in masks and key not in names}
    odd = [key for key, value in rest.items() if _shape(value) != (n,)]
    if odd and wanted is None:
        raise InputError(
            f'{path}: "{odd[0]}" has shape {_shape(rest[odd[0]])}, neither a modality (rows, width) of floats nor a '
            f"column of {n} entries; name the modalities you want, of {', '.join(names)}"
        )
    columns = {key: value for key, value in rest.items() if key not in odd}
    ids = columns.pop("ids", columns.pop("id", None))
    split_and_labels = {key: columns.pop(key, None) for key in ("split", "labels")}
    text = columns.pop("text" if "text" in columns else "captions", None)
    return FeatureSet(
        {names[j]: arrays[names[j]] for j in chosen},
        masks["present"][:, chosen] if "present" in masks else None,
        meta_table(n, ids=ids, **split_and_labels, text=text, columns=columns),
        imputed=masks["imputed"][:, chosen] if "imputed" in masks else None,
        name=path.stem,
        source=str(path),
        holes=holes,
    )


def _is_matrix(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind == "f"


def _shape(value: Any) -> tuple[int, ...]:
    """Of an array or a list, whose entries may be lists themselves; () for anything else."""
    return value.shape if isinstance(value, np.ndarray) else (len(value),) if isinstance(value, list) else ()


def read_parquet(path: Path, modalities: Sequence[str] | None, holes: bool = False) -> FeatureSet:
    """Columns of lists of floats are modalities (null = missing); the others describe the rows. See `tables`."""
    features = from_arrow(read_table(path), modalities, origin=str(path), holes=holes)
    features.name = path.stem
    return features


def read_h5mu(path: Path, modalities: Sequence[str] | None, holes: bool = False) -> FeatureSet:
    """A file of muon or MOFA, each of its modalities one; rows may lack single entries whatever `holes` says."""
    read: Callable[..., FeatureSet] = resolve_name("calmrl.interop.annotated:from_h5mu")  # on a level above
    return read(path, modalities)


Reader = Callable[..., FeatureSet]  # path, modalities wanted (None: all); and, if it has it, holes=True
FORMATS: dict[str, Reader] = {
    ".npz": read_npz,
    ".safetensors": read_safetensors,
    ".parquet": read_parquet,
    ".h5mu": read_h5mu,
}


PIECE_BYTES = 1 << 26  # values that are held at a time


def copy_features(features: FeatureSet | str | Path, out: Path) -> None:
    """Write features, in memory or in a single file, as the feature directory `out`, if it is not there yet.

    Of a Parquet file only the columns that describe the rows are held in memory. Rows may have NaN in single entries.
    """
    if out.exists():
        return
    if not isinstance(features, FeatureSet) and FORMATS.get(Path(features).suffix) is read_parquet:
        copy_parquet(Path(features), out)
        return
    source = features if isinstance(features, FeatureSet) else open_features(features, holes=True)
    about = described(source.meta)
    write_features(out, source.z, source.present, ids=source.ids, info=source.info, holes=True, **about)


def copy_parquet(path: Path, out: Path) -> None:
    """Write the rows of a Parquet file as the feature directory `out`; resumes where an earlier call stopped.

    The same as `write_features` of `open_features(path)`, but only the columns that describe the rows are held in memory.
    """
    origin = str(path)
    with parsing(path, "Parquet"):
        file = pq.ParquetFile(path)
        lists = gathered(file.schema_arrow.empty_table(), origin).schema
        names = modality_names(lists, origin)
        other = [field.name for field in lists if not is_vector(field.type)]
        table = description(file.read(columns=other))
        first = {name: _first(origin, file, lists.field(name)) for name in names}
    widths = {name: array.shape[1] for name, array in first.items()}
    dtype = np.result_type(*(array.dtype for array in first.values())).name
    ids = column_values(table, "id") if "id" in table.column_names else range(file.metadata.num_rows)
    with FeatureWriter(out, widths, ids, dtype=dtype, holes=True, **described(table)) as writer:
        start = 0
        for piece in _pieces(path, file, sum(widths.values())):
            rows = slice(start, start + piece.num_rows)
            z = {name: vectors(origin, name, piece[name], widths[name], holes=True) for name in names}
            present = np.stack([piece[name].is_valid().to_numpy() for name in names], axis=1)
            writer.fill(rows, z, present)
            start += piece.num_rows
        writer.finish()


def _pieces(path: Path, file: pq.ParquetFile, width: int) -> Iterator[pa.Table]:
    """The columns of vectors in pieces of about PIECE_BYTES, numbered columns as lists."""
    rows = max(1, PIECE_BYTES // (8 * width))
    columns = [field.name for field in file.schema_arrow if is_vector(field.type) or NUMBERED.fullmatch(field.name)]
    batches = file.iter_batches(rows, columns=columns)
    while True:
        with parsing(path, "Parquet"):
            batch = next(batches, None)
        if batch is None:
            return
        yield gathered(pa.Table.from_batches([batch]), str(path), holes=True)


def _first(origin: str, file: pq.ParquetFile, field: pa.Field) -> np.ndarray:
    """The vectors of the first row groups, up to one that has any: their width and dtype are those of the column."""
    column: Any = pa.chunked_array([], field.type)
    if not pa.types.is_fixed_size_list(field.type):  # the type has the width otherwise
        for group in range(file.num_row_groups):
            column = file.read_row_group(group, columns=[field.name])[field.name]
            if column.null_count < len(column):
                break
    return vectors(origin, field.name, column, holes=True)
