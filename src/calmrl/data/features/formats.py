"""Features in a single file, read into memory: a format is a function and its line in FORMATS, at the end.

Where a modality is itself called "text", the captions are the column "captions".
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from calmrl._support.parsing import parsing
from calmrl.convention import as_mask
from calmrl.data.features.feature_set import FeatureSet, pick, read_table
from calmrl.data.features.npy_files import read_npz_arrays
from calmrl.data.features.row_table import meta_table
from calmrl.errors import InputError


def read_npz(path: Path, modalities: Sequence[str] | None) -> FeatureSet:
    """Arrays of two dimensions are modalities, in the file's order; `present`, `ids`, `split`, ... are optional."""
    arrays = read_npz_arrays(path)
    return _from_arrays(path, arrays, list(arrays), modalities)


def read_safetensors(path: Path, modalities: Sequence[str] | None) -> FeatureSet:
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
    return _from_arrays(path, arrays | notes, order, modalities)


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


def _from_arrays(path: Path, arrays: Mapping[str, Any], order: list[str], wanted: Sequence[str] | None) -> FeatureSet:
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
    )


def _is_matrix(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind == "f"


def _shape(value: Any) -> tuple[int, ...]:
    """Of an array or a list, whose entries may be lists themselves; () for anything else."""
    return value.shape if isinstance(value, np.ndarray) else (len(value),) if isinstance(value, list) else ()


def read_parquet(path: Path, modalities: Sequence[str] | None) -> FeatureSet:
    """Columns of lists of floats are modalities (null = missing); the others describe the rows."""
    table = read_table(path)
    names = vector_names(path, table.schema)
    columns = pick(names, modalities, path)
    z = {names[j]: vectors(path, names[j], table[names[j]].combine_chunks()) for j in columns}
    present = np.stack([table[name].is_valid().to_numpy() for name in z], axis=1)
    table = caption_column(table.drop_columns(names))
    return FeatureSet(z, present, table, name=path.stem, source=str(path))


def vector_names(path: Path, schema: pa.Schema) -> list[str]:
    """The columns that are modalities."""
    names = [field.name for field in schema if _is_vector(field.type)]
    if not names:
        raise InputError(f"{path} has no column of lists of floats; it has {', '.join(schema.names)}")
    return names


def caption_column(table: pa.Table) -> pa.Table:
    """The table with its captions in the column "text"."""
    if "captions" in table.column_names and "text" not in table.column_names:
        return table.rename_columns({"captions": "text"})
    return table


def _is_vector(arrow_type: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(arrow_type) for test in lists) and pa.types.is_floating(arrow_type.value_type)


def vectors(path: Path, name: str, column: pa.Array, width: int | None = None) -> np.ndarray:
    """A column of equally long lists as (rows, width), NaN where null; `width`, if known, is what it must be."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not valid.any() and width is not None:
        return np.full((len(column), width), np.nan, dtype=column.type.value_type.to_pandas_dtype())
    if not valid.any():
        raise InputError(f'{path}: column "{name}" is null throughout, so that its width is unknown; leave it out')
    lengths = column.value_lengths().drop_null().to_numpy(zero_copy_only=False)
    if width is not None:
        lengths = np.append(lengths, width)
    if len(set(lengths.tolist())) > 1:
        raise InputError(
            f'{path}: the lists of column "{name}" have {min(lengths)} to {max(lengths)} entries; make them equally long'
        )
    if lengths[0] == 0:
        raise InputError(
            f'{path}: the lists of column "{name}" are empty; a missing modality is null, not an empty list'
        )
    values = column.drop_null().flatten()
    if values.null_count:
        raise InputError(f'{path}: a list of column "{name}" has null entries; a missing modality is null as a whole')
    flat = values.to_numpy(zero_copy_only=False)
    array = np.full((len(column), int(lengths[0])), np.nan, dtype=flat.dtype)
    array[valid] = flat.reshape(-1, int(lengths[0]))
    return array


Reader = Callable[[Path, Sequence[str] | None], FeatureSet]  # path, modalities wanted (None: all)
FORMATS: dict[str, Reader] = {".npz": read_npz, ".safetensors": read_safetensors, ".parquet": read_parquet}
