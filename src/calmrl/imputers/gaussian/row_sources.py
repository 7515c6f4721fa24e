"""Where the rows come from: arrays in memory, memory-mapped arrays, or chunks; always as packs of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.distributed import all_sum
from calmrl._support.moments import add_rows
from calmrl.convention import Array, Views, blocks_of_rows, check, release, to_tensor
from calmrl.errors import InputError
from calmrl.imputers.gaussian.pattern_groups import Pack, group, pack

CHUNK_BYTES = 1 << 26  # rows are read and packed in chunks of about this size
PACK_ROWS = 8192  # rows of one pack of data that stay in memory: small enough for the cache, large enough for BLAS


@dataclass
class Source:
    """Rows that can be gone through again and again, and what is known of them after the first time."""

    names: tuple[str, ...]
    widths: tuple[int, ...]
    chunks: Callable[[], Iterator[Views]]
    dtype: torch.dtype
    in_memory: bool
    device: torch.device
    count: Tensor  # (k,) rows that have each modality
    mean: list[Tensor]  # (d_m,)
    square: list[Tensor]  # (d_m,) sum of squared deviations from the mean
    rows: int
    together: Tensor  # (k, k) rows that have both modalities
    shared: bool  # whether the other processes hold further rows of the same source
    _kept: list[Pack] | None = None

    @property
    def variance(self) -> list[Tensor]:
        return [sq / n.clamp(min=1) for sq, n in zip(self.square, self.count, strict=True)]

    def packs(self) -> Iterator[Pack]:
        """All rows, centred, as packs. Data in memory are sorted by pattern once; others are packed chunk by chunk."""
        if not self.in_memory:
            for views in self.chunks():
                yield pack(views.rows(0, len(views)), views.present, self.widths, self.dtype, self.mean)
            return
        if self._kept is None:
            (views,) = self.chunks()
            _, order, _ = group(views.present)
            z = views.rows(0, len(views))
            self._kept = [
                pack(
                    [None if v is None else v[rows] for v in z], views.present[rows], self.widths, self.dtype, self.mean
                )
                for rows in order.split(PACK_ROWS)
            ]
        yield from self._kept


def open_source(z: Any, present: Array | None, shared: bool = True) -> Source:
    """A source from the convention's `z` and `present`, or from an iterable of (z, present) chunks.

    `shared=False`: these rows are all there is, whatever other processes do.
    """
    if isinstance(z, Mapping):
        views = check(z, present, min_rows=1)
        mapped = any(isinstance(a, np.memmap) for a in views.arrays.values())
        chunks: Callable[[], Iterator[Views]] = (lambda: _pieces(views)) if mapped else (lambda: iter([views]))
        return _describe(views.names, views.widths, chunks, in_memory=not mapped, shared=shared)
    if present is not None:
        raise InputError("present goes with a dict; in an iterable of chunks each chunk is a pair (z, present)")
    if not isinstance(z, Iterable):
        raise InputError(f"z must be a dict of arrays or an iterable of (z, present) chunks; got {type(z).__name__}")
    if iter(z) is z:
        raise InputError(
            "fit goes through the data several times, but a generator can be read only once; pass a list, or an object "
            "whose __iter__ starts anew (or feed it to partial_fit chunk by chunk)"
        )
    first = next(_checked(z, None), None)
    if first is None:
        raise InputError("the iterable of chunks is empty; at least one (z, present) chunk needed")
    return _describe(first.names, first.widths, lambda: _checked(z, first), in_memory=False, shared=shared)


def source_of(views: Views) -> Source:
    """Checked rows in memory as a source, together with those of the other processes."""
    return _describe(views.names, views.widths, lambda: iter([views]), in_memory=True, shared=True)


def mapped_source(source: Source, change: Callable[[Views], Views], widths: tuple[int, ...]) -> Source:
    """The same rows with other columns: `change` is applied to every chunk."""
    return _describe(
        source.names, widths, lambda: map(change, source.chunks()), in_memory=source.in_memory, shared=source.shared
    )


def _checked(chunks: Iterable[Any], like: Views | None) -> Iterator[Views]:
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, (tuple, list)) or len(chunk) != 2:
            raise InputError(f"chunk {number} must be a pair (z, present); got {type(chunk).__name__}")
        names, widths = (None, None) if like is None else (like.names, like.widths)
        views = check(chunk[0], chunk[1], names=names, widths=widths)
        if len(views):
            yield views


def _pieces(views: Views) -> Iterator[Views]:
    """Memory-mapped rows piece by piece; the pages of a piece are given back before the next one is read."""
    row_bytes = sum(a.shape[1] * a.dtype.itemsize for a in views.arrays.values())
    for start, stop in blocks_of_rows(len(views), row_bytes, CHUNK_BYTES):
        yield Views(
            {name: array[start:stop] for name, array in views.arrays.items()}, views.present[start:stop], views.widths
        )
        for array in views.arrays.values():
            release(array)


def _describe(
    names: tuple[str, ...],
    widths: tuple[int, ...],
    chunks: Callable[[], Iterator[Views]],
    in_memory: bool,
    shared: bool,
) -> Source:
    """One pass for counts, means and sums of squares (Chan's update between chunks and between processes)."""
    count = torch.zeros(len(names), dtype=torch.float64)
    mean = [torch.zeros(width, dtype=torch.float64) for width in widths]
    square = [torch.zeros(width, dtype=torch.float64) for width in widths]
    together = torch.zeros(len(names), len(names), dtype=torch.float64)
    rows, device, dtype = 0, torch.device("cpu"), torch.float32
    for views in chunks():
        rows += len(views)
        if views.present.device != device:
            device = views.present.device
            count, mean, square = count.to(device), [t.to(device) for t in mean], [t.to(device) for t in square]
            together = together.to(device)
        held = views.present.double()
        together += held.T @ held
        for m, array in enumerate(views.arrays.values()):
            if array is None:
                continue
            if array.dtype in (torch.float64, np.dtype("float64")):
                dtype = torch.float64
            row_bytes = 8 * array.shape[1]
            for start, stop in blocks_of_rows(len(views), row_bytes, CHUNK_BYTES):
                block = to_tensor(array[start:stop]).detach()[views.present[start:stop, m]].double()
                add_rows(block, count[m], mean[m], square[m])
    number = torch.tensor([float(rows)], dtype=torch.float64, device=device)
    combine = all_sum if shared else list
    total, together, number, *sums = combine(
        [count, together, number, *(n * m for n, m in zip(count, mean, strict=True))]
    )
    centres = [s / n.clamp(min=1) for s, n in zip(sums, total, strict=True)]
    spread = combine([sq + n * (m - c) ** 2 for sq, n, m, c in zip(square, count, mean, centres, strict=True)])
    return Source(
        names=names,
        widths=widths,
        chunks=chunks,
        dtype=dtype,
        in_memory=in_memory,
        device=device,
        count=total,
        mean=centres,
        square=spread,
        rows=int(number.item()),
        together=together,
        shared=shared,
    )
