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

import numpy as np

from calmrl._support.output import new_file
from calmrl._support.parsing import parsing
from calmrl.data.features.directory import read_npy
from calmrl.data.features.feature_set import FeatureSet
from calmrl.errors import InputError

IMPUTED, STD = ".imputed", ".std"  # no modality has a dot in its name
ROWS, FILES = "CALMRL.rows", "CALMRL.files"  # names in the first header of a shard
Sample = dict[str, bytes]  # what follows the key -> content


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
        chunk: list[dict[str, np.ndarray]] = []
        for path in self.paths:
            for key, sample in samples(path):
                chunk.append(self._vectors(path, key, sample))
                if len(chunk) == self.rows:
                    yield self._stack(chunk)
                    chunk = []
        if chunk:
            yield self._stack(chunk)

    def _vectors(self, path: Path, key: str, sample: Sample) -> dict[str, np.ndarray]:
        vectors = {}
        for name, width in self.widths.items():
            if f"{name}.npy" in sample:
                content = sample[f"{name}.npy"]
                vector = read_npy(io.BytesIO(content), len(content), f"{path}: {key}.{name}.npy")
                if vector.shape != (width,) or vector.dtype.kind != "f":
                    got = f"{vector.dtype} {vector.shape}"
                    raise InputError(f"{path}: {key}.{name}.npy holds {got}; expected {width} floats")
                vectors[name] = vector
        return vectors

    def _stack(self, chunk: list[dict[str, np.ndarray]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        present = np.array([[name in sample for name in self.widths] for sample in chunk])
        z = {}
        for name, width in self.widths.items():
            nothing = np.full(width, np.nan, dtype=np.float32)
            z[name] = np.stack([sample.get(name, nothing) for sample in chunk]).astype(np.float32, copy=False)
        return z, present


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
