"""Features in tar shards (the layout of WebDataset), for collections that are streamed rather than opened.

A sample is a run of files with the same key: `<key>.<modality>.npy` for each modality it has, and `<key>.json` with id,
split, labels and text. A missing modality is a file that is not there. What was imputed is `<key>.<modality>.imputed.npy`,
with its standard deviations in `<key>.<modality>.std.npy`; `Shards` reads only what was observed.

A shard that was cut off is an error: it lacks the zeros that end a tar file. Shards of `write_shards` also say in their
first header how many rows and files they hold.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl._support.output import new_file
from calmrl._support.parsing import parsing
from calmrl.data.features.directory import read_npy
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.tables import IMPUTED, STD
from calmrl.errors import InputError

NPY = ".npy"
ROWS, FILES = "CALMRL.rows", "CALMRL.files"  # names in the first header of a shard
Sample = dict[str, bytes]  # what follows the key -> content


Vectors = dict[str, np.ndarray]  # name -> vector of one row


class Shards:
    """Iterate over `(z, present)` chunks of at most `rows` rows; every loop reads the shards anew, in order.

    Parameters
    ----------
    paths : sequence of str or Path
    widths : mapping of str to int
        Modality wanted -> d.
    rows : int
        Rows per chunk.
    rank, world : int
        With several processes, shard i belongs to process i % world.
    """

    def __init__(
        self, paths: Sequence[str | Path], widths: Mapping[str, int], rows: int = 4096, rank: int = 0, world: int = 1
    ) -> None:
        if not 0 <= rank < world <= len(paths):
            raise InputError(f"rank {rank} of {world} processes and {len(paths)} shards: each process needs a shard")
        self.paths = [Path(path) for path in paths][rank::world]
        self.widths = dict(widths)
        self.rows = rows

    def __iter__(self) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        chunk: list[Vectors] = []
        for path in self.paths:
            for key, sample in samples(path):
                there = {name: width for name, width in self.widths.items() if name + NPY in sample}
                chunk.append({name: _vector(sample, name, f"{path}: {key}", width) for name, width in there.items()})
                if len(chunk) == self.rows:
                    yield self._joined(chunk)
                    chunk = []
        if chunk:
            yield self._joined(chunk)

    def _joined(self, chunk: list[Vectors]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        z = {name: _stacked(chunk, name, width, np.dtype(np.float32)) for name, width in self.widths.items()}
        return z, np.array([[name in row for name in self.widths] for row in chunk])


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
    >>> from calmrl.datasets import load_dataset
    >>> path = tempfile.mkdtemp() + "/shards"
    >>> written = write_shards(load_dataset("stamps"), path)
    >>> from_webdataset(path).present.shape
    (963, 4)
    """
    rows: list[Vectors] = []
    about: list[dict[str, Any]] = []
    for path in _paths(shards):
        for key, sample in samples(path):
            names = [file.removesuffix(NPY) for file in sample if file.endswith(NPY)]
            rows.append({name: _vector(sample, name, f"{path}: {key}") for name in names})
            about.append({"id": key, **_description(sample, f"{path}: {key}")})
    held = sorted({name for row in rows for name in row if "." not in name})
    names = held if modalities is None else list(modalities)
    if not names or not set(names) <= set(held):
        raise InputError(
            f"the shards hold {', '.join(held) or 'no <modality>.npy'}; asked for {', '.join(names) or 'all'}"
        )
    present = np.array([[name in row for name in names] for row in rows])
    imputed = np.array([[name + IMPUTED in row for name in names] for row in rows])
    z, std = {}, {}
    for j, name in enumerate(names):
        first = next(row[name] for row in rows if name in row)
        width, dtype = len(first), np.result_type(*(row[name].dtype for row in rows if name in row))
        z[name] = _stacked(rows, name, width, dtype)
        z[name][imputed[:, j]] = _stacked(rows, name + IMPUTED, width, dtype)[imputed[:, j]]
        if any(name + STD in row for row in rows):
            std[name] = np.where(present[:, j, None], dtype.type(0), _stacked(rows, name + STD, width, dtype))
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


def _vector(sample: Sample, name: str, origin: str, width: int | None = None) -> np.ndarray:
    """The vector `<name>.npy` of a sample, of the width that it must have if that is known."""
    content, label = sample[name + NPY], f"{origin}.{name}.npy"
    vector = read_npy(io.BytesIO(content), len(content), label)
    if vector.ndim != 1 or vector.dtype.kind != "f" or len(vector) != (len(vector) if width is None else width):
        wanted = "a vector of floats" if width is None else f"{width} floats"
        raise InputError(f"{label} holds {vector.dtype} of shape {vector.shape}; expected {wanted}")
    return vector


def _description(sample: Sample, origin: str) -> dict[str, Any]:
    """What the JSON file of a sample says about its row."""
    try:
        content = json.loads(sample.get("json", b"{}"))
    except ValueError as error:
        raise InputError(f"{origin}.json is no JSON ({error}); write the shard again") from error
    if not isinstance(content, dict):
        raise InputError(f"{origin}.json holds a {type(content).__name__}; expected names and values")
    return content


def _stacked(rows: Sequence[Vectors], name: str, width: int, dtype: np.dtype) -> np.ndarray:
    """(rows, width), NaN where a row has no vector of this name."""
    block = np.full((len(rows), width), np.nan, dtype)
    for number, row in enumerate(rows):
        if name in row:
            if len(row[name]) != width:
                least, most = sorted((width, len(row[name])))
                raise InputError(f"vectors of {name} have {least} to {most} entries; make them equally long")
            block[number] = row[name]
    return block


def write_shards(features: FeatureSet, folder: str | Path, rows: int = 10_000) -> list[Path]:
    """Write features as `<folder>/000000.tar`, ... with `rows` samples each, and return the paths."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = []
    for first in range(0, len(features), rows):
        path = Path(folder) / f"{first // rows:06d}.tar"
        stop = min(len(features), first + rows)
        vectors = [_vectors_of(features, row) for row in range(first, stop)]
        counts = {ROWS: stop - first, FILES: stop - first + sum(map(len, vectors))}
        headers = {name: str(count) for name, count in counts.items()}
        with new_file(path, advice="") as draft, tarfile.open(draft, "w", pax_headers=headers) as tar:
            for row, named in enumerate(vectors, first):
                for name, vector in named.items():
                    content = io.BytesIO()
                    np.save(content, vector)
                    _add(tar, f"{row:09d}.{name}.npy", content.getvalue())
                about = features.meta.slice(row, 1).to_pylist()[0]
                _add(tar, f"{row:09d}.json", json.dumps(about, ensure_ascii=False).encode())
        paths.append(path)
    return paths


def _vectors_of(features: FeatureSet, row: int) -> dict[str, np.ndarray]:
    """What one sample holds: observed vectors by modality, imputed ones and their deviations under names of their own."""
    vectors = {}
    for j, (name, array) in enumerate(features.z.items()):
        if features.present[row, j]:
            vectors[name] = np.asarray(array[row])
        elif features.imputed is not None and features.imputed[row, j]:
            vectors[name + IMPUTED] = np.asarray(array[row])
            if features.std is not None and name in features.std:
                vectors[name + STD] = np.asarray(features.std[name][row])
    return vectors


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


class _StrictMember(tarfile.TarInfo):
    """A member whose header is whole; tarfile itself takes a damaged header for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> _StrictMember:
        try:
            member = super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error} at byte {tar.offset}, before the end of the archive") from error
        if member.issparse():
            raise tarfile.ReadError(f"{member.name} is sparse")
        return member


def samples(path: Path) -> Iterator[tuple[str, Sample]]:
    """(key, files) of one shard; the key is what stands before the first dot of the file name."""
    key, sample = "", Sample()
    rows = files = 0
    if not path.exists():
        raise InputError(f"no shard at {path}")
    with (
        parsing(path, "a tar file", "it was cut off or is no such file"),
        tarfile.open(path, "r|*", tarinfo=_StrictMember) as tar,
    ):
        for member in tar:
            if not member.isfile():
                continue
            folder, _, name = member.name.rpartition("/")
            stem, _, rest = name.partition(".")
            if sample and f"{folder}/{stem}" != key:
                yield key.lstrip("/"), sample
                rows += 1
                sample = Sample()
            key = f"{folder}/{stem}"
            if rest in sample:
                raise InputError(f"{path} holds {member.name} twice in a row; keys must differ")
            file = tar.extractfile(member)
            assert file is not None  # it is a regular file
            sample[rest] = file.read()
            files += 1
        _check_end(tar, {ROWS: rows + bool(sample), FILES: files})
    if sample:
        yield key.lstrip("/"), sample


def _check_end(tar: tarfile.TarFile, counts: Mapping[str, int]) -> None:
    """Nothing but zeros follows the last member, and there were as many as the first header says."""
    assert tar.fileobj is not None  # it is open
    while block := tar.fileobj.read(1 << 16):
        if block.strip(b"\0"):
            raise tarfile.ReadError("something follows its end")
    for name, count in counts.items():
        written = tar.pax_headers.get(name, str(count))
        if written != str(count):
            raise tarfile.ReadError(f"it holds {count} {name.rpartition('.')[2]} of {written:.20}")
