"""Where the rows come from: arrays in memory, memory-mapped arrays, or chunks; always as packs of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.distributed import all_sum
from calmrl._support.moments import add_rows, add_summary
from calmrl.arrays import Array, Views, blocks_of_rows, check, release, to_tensor
from calmrl.data.features import distributed_rows as spread_rows
from calmrl.data.features.distributed_rows import DistributedRows
from calmrl.errors import InputError
from calmrl.latent.model import Pack, group_rows, pack

PACK_ROWS = 8192  # rows of one pack of data that stay in memory: small enough for the cache, large enough for BLAS


@dataclass(frozen=True)
class Spread:
    """Rows that an engine goes through, with other columns if `changes` say so; these travel with every pass."""

    rows: DistributedRows
    changes: tuple[Callable[[Views], Views], ...] = ()

    def each(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """function(views of a block, *shared) for every block, in order."""
        return self.rows.each(_on_views, self.changes, function, *shared)

    def views(self) -> Iterator[Views]:
        """Every block, opened here."""
        return (_changed(views, self.changes) for views in self.rows.views())


def _changed(views: Views, changes: tuple[Callable[[Views], Views], ...]) -> Views:
    for change in changes:
        views = change(views)
    return views


def _on_views(
    views: Views, changes: tuple[Callable[[Views], Views], ...], function: Callable[..., Any], *shared: Any
) -> Any:
    return function(_changed(views, changes), *shared)


def _on_packs(
    views: Views,
    function: Callable[..., Any],
    widths: tuple[int, ...],
    dtype: torch.dtype,
    mean: list[Tensor],
    *shared: Any,
) -> Any:
    return function(iter([pack(views.rows(0, len(views)), views.present, widths, dtype, mean)]), *shared)


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
    spread: Spread | None = None  # where an engine goes through the rows
    _kept: list[Pack] | None = None

    @property
    def variance(self) -> list[Tensor]:
        return [sq / n.clamp(min=1) for sq, n in zip(self.square, self.count, strict=True)]

    def each(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """function(packs of a block, *shared) for every block of rows, in order: here, or wherever the engine works.

        What is summed over rows is summed within blocks and then over blocks, so that it is the same everywhere.
        """
        if self.spread is not None:
            return self.spread.each(_on_packs, function, self.widths, self.dtype, self.mean, *shared)
        if self.in_memory:
            return iter([function(self.packs(), *shared)])
        return (function(iter([packed]), *shared) for packed in self.packs())

    def each_chunk(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """As `each`, with function(views of a block, *shared): the rows as they are."""
        if self.spread is not None:
            return self.spread.each(function, *shared)
        pieces = (piece for views in self.chunks() for piece in _pieces(views)) if self.in_memory else self.chunks()
        return (function(views, *shared) for views in pieces)

    def packs(self) -> Iterator[Pack]:
        """All rows, centred, as packs. Data in memory are sorted by pattern once; others are packed chunk by chunk."""
        if not self.in_memory:
            for views in self.chunks():
                yield pack(views.rows(0, len(views)), views.present, self.widths, self.dtype, self.mean)
            return
        if self._kept is None:
            (views,) = self.chunks()
            _, order, _ = group_rows(views.present)
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
    if isinstance(z, DistributedRows):
        return _spread_source(Spread(z), z.names, z.widths, shared)
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
    if source.spread is not None:
        spread = Spread(source.spread.rows, (*source.spread.changes, change))
        return _spread_source(spread, source.names, widths, source.shared)
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
    """Rows piece by piece; the memory-mapped pages of a piece are given back before the next one is read."""
    arrays = {name: array for name, array in views.arrays.items() if array is not None}
    row_bytes = sum(a.shape[1] * a.dtype.itemsize for a in arrays.values())
    for start, stop in blocks_of_rows(len(views), row_bytes, spread_rows.BLOCK_BYTES):
        yield Views(
            {name: None if array is None else array[start:stop] for name, array in views.arrays.items()},
            views.present[start:stop],
            views.widths,
        )
        for array in arrays.values():
            release(array)


def _spread_source(spread: Spread, names: tuple[str, ...], widths: tuple[int, ...], shared: bool) -> Source:
    parts = spread.each(_measure)
    return replace(_summary(names, widths, spread.views, parts, in_memory=False, shared=shared), spread=spread)


def _describe(
    names: tuple[str, ...],
    widths: tuple[int, ...],
    chunks: Callable[[], Iterator[Views]],
    in_memory: bool,
    shared: bool,
) -> Source:
    return _summary(names, widths, chunks, map(_measure, chunks()), in_memory, shared)


@dataclass
class Measured:
    """What one pass over some rows finds: counts, means and sums of squares per modality."""

    rows: int
    dtype: torch.dtype
    together: Tensor  # (k, k) rows that have both modalities
    count: Tensor  # (k,)
    mean: list[Tensor]  # (d_m,)
    square: list[Tensor]  # (d_m,) sum of squared deviations from the mean

    def add(self, other: Measured) -> None:
        """Take in further rows (Chan's update)."""
        self.rows += other.rows
        self.dtype = torch.float64 if torch.float64 in (self.dtype, other.dtype) else self.dtype
        self.together += other.together
        for m in range(len(self.mean)):
            add_summary(other.count[m], other.mean[m], other.square[m], self.count[m], self.mean[m], self.square[m])


def _measure(views: Views) -> Measured:
    """One pass over the rows of a chunk."""
    device, dtype = views.present.device, torch.float32
    held = views.present.double()
    count = torch.zeros(len(views.names), dtype=torch.float64, device=device)
    mean = [torch.zeros(width, dtype=torch.float64, device=device) for width in views.widths]
    square = [torch.zeros(width, dtype=torch.float64, device=device) for width in views.widths]
    for m, array in enumerate(views.arrays.values()):
        if array is None:
            continue
        if array.dtype in (torch.float64, np.dtype("float64")):
            dtype = torch.float64
        for start, stop in blocks_of_rows(len(views), 8 * array.shape[1], spread_rows.BLOCK_BYTES):
            block = to_tensor(array[start:stop]).detach()[views.present[start:stop, m]].double()
            add_rows(block, count[m], mean[m], square[m])
    return Measured(len(views), dtype, held.T @ held, count, mean, square)


def _summary(
    names: tuple[str, ...],
    widths: tuple[int, ...],
    chunks: Callable[[], Iterator[Views]],
    parts: Iterable[Measured],
    in_memory: bool,
    shared: bool,
) -> Source:
    """Counts, means and sums of squares of all rows, over chunks and over processes."""
    whole: Measured | None = None
    for part in parts:
        if whole is None:
            whole = part
        else:
            whole.add(part)
    if whole is None:
        raise InputError("there are no rows; at least one needed")
    count, mean = whole.count, whole.mean
    number = torch.tensor([float(whole.rows)], dtype=torch.float64, device=count.device)
    combine = all_sum if shared else list
    total, together, number, *sums = combine(
        [count, whole.together, number, *(n * m for n, m in zip(count, mean, strict=True))]
    )
    centres = [s / n.clamp(min=1) for s, n in zip(sums, total, strict=True)]
    spread = combine([sq + n * (m - c) ** 2 for sq, n, m, c in zip(whole.square, count, mean, centres, strict=True)])
    return Source(
        names=names,
        widths=widths,
        chunks=chunks,
        dtype=whole.dtype,
        in_memory=in_memory,
        device=count.device,
        count=total,
        mean=centres,
        square=spread,
        rows=int(number.item()),
        together=together,
        shared=shared,
    )
