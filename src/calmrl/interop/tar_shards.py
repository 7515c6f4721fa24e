"""WebDataset: tar shards of features, as `calmrl.data.write_shards` writes them.

A sample has `<modality>.npy` for what was observed, `<modality>.imputed.npy` and `<modality>.std.npy` for what was imputed,
and `json` with id, split, labels and text.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.npy_files import read_npy
from calmrl.data.features.shards import IMPUTED, STD, Sample, samples, write_shards
from calmrl.errors import InputError

NPY = ".npy"
Vectors = dict[str, np.ndarray]  # file of a sample, without .npy -> vector


def to_webdataset(features: FeatureSet, folder: str | Path, rows: int = 10_000) -> list[Path]:
    """Write `<folder>/000000.tar`, ... with `rows` samples each, and return the paths.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> path = tempfile.mkdtemp() + "/shards"
    >>> written = to_webdataset(features, path)
    >>> from_webdataset(path).present.tolist()
    [[True, True], [True, False]]
    """
    return write_shards(features, folder, rows)


def from_webdataset(shards: str | Path | Sequence[str | Path], modalities: Sequence[str] | None = None) -> FeatureSet:
    """Read shards into memory; to stream them instead, use `calmrl.data.Shards`.

    Parameters
    ----------
    shards : path or sequence of paths
        Tar files, or a folder of them.
    modalities : sequence of str, optional
        The modalities wanted, in that order; by default all, by name.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> path = tempfile.mkdtemp() + "/shards"
    >>> written = to_webdataset(features, path)
    >>> from_webdataset(path).present.tolist()
    [[True, True], [True, False]]
    """
    vectors: list[Vectors] = []
    about: list[dict[str, Any]] = []
    for path in _paths(shards):
        for key, sample in samples(path):
            vectors.append(_vectors(sample, f"{path}: {key}"))
            about.append({"id": key, **_json(sample, f"{path}: {key}")})
    held = sorted({name for row in vectors for name in row if "." not in name})
    names = held if modalities is None else list(modalities)
    if not names or not set(names) <= set(held):
        raise InputError(
            f"the shards hold {', '.join(held) or 'no <modality>.npy'}; asked for {', '.join(names) or 'all'}"
        )
    z = {name: _stack(vectors, name) for name in names}
    present = np.array([[name in row for name in names] for row in vectors])
    imputed = np.array([[name + IMPUTED in row for name in names] for row in vectors])
    std = {}
    for j, name in enumerate(names):
        z[name][imputed[:, j]] = _stack(vectors, name + IMPUTED, z[name])[imputed[:, j]]
        if any(name + STD in row for row in vectors):
            std[name] = np.where(present[:, j, None], 0, _stack(vectors, name + STD, z[name])).astype(z[name].dtype)
    return FeatureSet(
        z,
        present,
        pa.Table.from_pylist(about),
        imputed=imputed if imputed.any() else None,
        std=std or None,
        name="shards",
        source="shards",
    )


def _paths(shards: str | Path | Sequence[str | Path]) -> list[Path]:
    if not isinstance(shards, (str, Path)):
        return [Path(path) for path in shards]
    if not Path(shards).is_dir():
        return [Path(shards)]
    paths = sorted(Path(shards).glob("*.tar"))
    if not paths:
        raise InputError(f"{shards} holds no .tar file; name the shards or their folder")
    return paths


def _vectors(sample: Sample, origin: str) -> Vectors:
    vectors = {}
    for file, content in sample.items():
        if file.endswith(NPY):
            vector = read_npy(io.BytesIO(content), len(content), f"{origin}.{file}")
            if vector.ndim != 1 or vector.dtype.kind != "f":
                raise InputError(
                    f"{origin}.{file} holds {vector.dtype} of shape {vector.shape}; expected a vector of floats"
                )
            vectors[file.removesuffix(NPY)] = vector
    return vectors


def _json(sample: Mapping[str, bytes], origin: str) -> dict[str, Any]:
    if "json" not in sample:
        return {}
    try:
        content = json.loads(sample["json"])
    except ValueError as error:
        raise InputError(f"{origin}.json is no JSON ({error}); write the shard again") from error
    if not isinstance(content, dict):
        raise InputError(f"{origin}.json holds a {type(content).__name__}; expected names and values")
    return content


def _stack(rows: Sequence[Vectors], name: str, like: np.ndarray | None = None) -> np.ndarray:
    """(rows, width), NaN where a sample lacks the file; as wide as the vectors, or as `like`."""
    vectors = [row[name] for row in rows if name in row]
    widths = {len(vector) for vector in vectors} | ({like.shape[1]} if like is not None else set())
    if len(widths) > 1:
        raise InputError(f"vectors of {name} have {min(widths)} to {max(widths)} entries; make them equally long")
    dtype = np.result_type(*(vector.dtype for vector in vectors)) if like is None else like.dtype
    block = np.full((len(rows), widths.pop()), np.nan, dtype)
    for number, row in enumerate(rows):
        if name in row:
            block[number] = row[name]
    return block
