"""The rows that a latent model is fitted on: a source goes through them again and again, in packs of bounded size.

They come from arrays in memory, memory-mapped arrays, chunks, or an engine whose workers hold them. A pack is a number of rows
sorted by their pattern of observed modalities, so that every pattern is one slice of every modality; rows with holes inside a
modality stand apart in it, sorted by their pattern of observed entries. One first pass finds counts, means and variances; EM
sees centred rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.distributed import all_sum
from calmrl._support.linalg import add_entries, add_rows, add_summary
from calmrl.arrays import Array, Views, blocks_of_rows, check, release, to_tensor
from calmrl.data.features import distributed_rows
from calmrl.data.features.distributed_rows import DistributedRows
from calmrl.data.patterns import connected
from calmrl.errors import InputError

PACK_ROWS = 8192  # rows of one pack of data that stay in memory: small enough for the cache, large enough for BLAS


# ---- packs


@dataclass(frozen=True)
class Torn:
    """Rows with holes inside a modality, all columns side by side, sorted by their pattern of observed entries. float64."""

    x: Tensor  # (n, D), zero where not observed
    patterns: Tensor  # (P, D) bool: observed entries
    slots: Tensor  # (n,) the pattern of each row, ascending
    order: Tensor  # (n,) original index of each row
    present: Tensor  # (n, k) bool


@dataclass(frozen=True)
class Pack:
    """Some rows, sorted by pattern. Modality m keeps only the rows that have it, so every pattern is a slice everywhere.

    All fields but `torn` are about the whole rows: those without holes.
    """

    patterns: Tensor  # (P, k) bool
    bounds: list[int]  # P + 1 positions among the sorted rows
    z: list[Tensor]  # (N_m, d_m): rows that have modality m, in sorted order
    offsets: list[list[int]]  # [m][p]: where pattern p starts in z[m]
    order: Tensor  # (N,) original index of each sorted row
    places: list[Tensor]  # (N_m,): where the rows of z[m] are among the sorted rows
    torn: Torn | None = None  # the rows with holes, if there are any

    def __len__(self) -> int:
        return len(self.order) + (0 if self.torn is None else len(self.torn.order))

    @property
    def sizes(self) -> list[int]:
        """Rows of each pattern."""
        return [stop - start for start, stop in pairwise(self.bounds)]

    def rows(self, p: int) -> Tensor:
        """Original indices of the rows of pattern p."""
        return self.order[self.bounds[p] : self.bounds[p + 1]]

    def slices(self, p: int) -> list[tuple[int, Tensor]]:
        """(modality, its rows) for every modality that pattern p has."""
        size = self.bounds[p + 1] - self.bounds[p]
        held = torch.nonzero(self.patterns[p])[:, 0].tolist()
        return [(m, self.z[m][self.offsets[m][p] : self.offsets[m][p] + size]) for m in held]


def group_rows(present: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """(patterns, order, bounds): the distinct rows of `present`, and the row order in which each is one slice."""
    k = present.shape[1]
    if k <= 62:
        weight = torch.tensor([1 << j for j in range(k)], device=present.device)
        _, inverse, counts = torch.unique((present * weight).sum(1), return_inverse=True, return_counts=True)
    else:
        _, inverse, counts = torch.unique(present, dim=0, return_inverse=True, return_counts=True)
    order = torch.argsort(inverse, stable=True)
    bounds = [0, *counts.cumsum(0).tolist()]
    patterns = present[order[bounds[:-1]]] if len(present) else present
    return patterns, order, bounds


def distinct_rows(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P, k) patterns in an order that depends on nothing else, and which of them each row of the mask has (N,)."""
    k, raw = mask.shape[1], mask.tobytes()
    keys = [raw[start : start + k] for start in range(0, len(raw), k)]
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    patterns = np.frombuffer(b"".join(places), dtype=bool).reshape(-1, k)
    return patterns.copy(), np.array([places[key] for key in keys], dtype=np.int64)


def pack(
    z: Sequence[Tensor | None],
    present: Tensor,
    widths: Sequence[int],
    dtype: torch.dtype,
    shift: Sequence[Tensor] = (),
    holes: Sequence[bool] = (),
) -> Pack:
    """Sort rows by pattern, keep what is observed, convert to the working dtype and subtract `shift`, if there is one.

    Differentiable in `z`; values in missing rows are never read. `None` stands for a modality that no row has, `holes` says
    which modalities may be NaN in single entries.
    """
    if any(holes):
        lacking = _rows_with_holes(z, present, holes)
        if bool(lacking.any()):
            whole = (~lacking).nonzero()[:, 0]
            left = pack([v if v is None else v[whole] for v in z], present[whole], widths, dtype, shift)
            return replace(
                left, order=whole[left.order], torn=_torn(z, present, widths, shift, lacking.nonzero()[:, 0])
            )
    patterns, order, bounds = group_rows(present)
    in_order = len(patterns) <= 1
    sizes = [stop - start for start, stop in pairwise(bounds)]
    rows, offsets, places = [], [], []
    in_pattern = present[order]
    for m, values in enumerate(z):
        if values is None:
            values = torch.zeros((len(present), widths[m]), dtype=dtype, device=present.device)
        place = in_pattern[:, m].nonzero()[:, 0]
        places.append(place)
        if not in_order:
            values = values.index_select(0, order[place])  # its derivative is cheaper than that of [...]
        elif len(patterns) and not bool(patterns[0, m]):
            values = values[:0]
        values = values.to(dtype)
        rows.append(values - shift[m].to(dtype) if shift else values)
        starts, position = [], 0
        for size, has in zip(sizes, patterns[:, m].tolist(), strict=True):
            starts.append(position)
            position += size * has
        offsets.append(starts)
    return Pack(patterns, bounds, rows, offsets, order, places)


def _rows_with_holes(z: Sequence[Tensor | None], present: Tensor, holes: Sequence[bool]) -> Tensor:
    rows = torch.zeros(len(present), dtype=torch.bool, device=present.device)
    for values, column, some in zip(z, present.unbind(1), holes, strict=True):
        if some and values is not None:
            rows |= column & torch.isnan(values).any(1)
    return rows


def _torn(
    z: Sequence[Tensor | None], present: Tensor, widths: Sequence[int], shift: Sequence[Tensor], rows: Tensor
) -> Torn:
    """These rows, side by side and sorted."""
    columns, seen = [], []
    for m, (values, width) in enumerate(zip(z, widths, strict=True)):
        if values is None:
            values = torch.full((len(present), width), float("nan"), device=present.device)
        values = values[rows].double()
        has = present[rows, m, None] & ~torch.isnan(values)
        columns.append(torch.where(has, values - shift[m].double() if shift else values, 0.0))
        seen.append(has)
    patterns, slots = distinct_rows(torch.cat(seen, dim=1).cpu().numpy())
    order = np.argsort(slots, kind="stable")
    at = torch.from_numpy(order).to(rows.device)
    x = torch.cat(columns, dim=1)[at]
    kinds, sorted_slots = (torch.from_numpy(part).to(rows.device) for part in (patterns, slots[order]))
    return Torn(x, kinds, sorted_slots, rows[at], present[rows[at]])


def working_dtype(views: Views) -> torch.dtype:
    """float64 if any modality is, else float32."""
    wide = any(str(a.dtype).endswith("float64") for a in views.arrays.values() if a is not None)
    return torch.float64 if wide else torch.float32


# ---- sources


@dataclass(frozen=True)
class DistributedViews:
    """Rows that an engine goes through, with other columns if `changes` say so; these travel with every pass."""

    rows: DistributedRows
    changes: tuple[Callable[[Views], Views], ...] = ()

    def each(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """function(views of a block, *shared) for every block, in order."""
        return self.rows.each(_on_changed, self.changes, function, *shared)

    def views(self) -> Iterator[Views]:
        """Every block, opened here."""
        return (_changed(views, self.changes) for views in self.rows.views())


def _changed(views: Views, changes: tuple[Callable[[Views], Views], ...]) -> Views:
    for change in changes:
        views = change(views)
    return views


def _on_changed(views: Views, changes: Any, function: Callable[..., Any], *shared: Any) -> Any:
    return function(_changed(views, changes), *shared)


def _on_packs(views: Views, function: Callable[..., Any], widths: Any, dtype: Any, mean: Any, *shared: Any) -> Any:
    return function(iter([_centred_pack(views, widths, dtype, mean)]), *shared)


def _centred_pack(views: Views, widths: tuple[int, ...], dtype: torch.dtype, mean: list[Tensor]) -> Pack:
    return pack(views.rows(0, len(views)), views.present, widths, dtype, mean, has_holes(views))


def has_holes(views: Views) -> list[bool]:
    """Of every modality, whether rows that are present have holes."""
    return [name in views.holes for name in views.names]


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
    distributed: DistributedViews | None = None  # where an engine goes through the rows
    entries: list[Tensor] | None = (
        None  # (d_m,) rows in which each column is observed; None: all that have the modality
    )
    _packs: list[Pack] | None = field(default=None, init=False)

    @property
    def variance(self) -> list[Tensor]:
        counts = self.count if self.entries is None else self.entries
        return [sq / n.clamp(min=1) for sq, n in zip(self.square, counts, strict=True)]

    @property
    def torn(self) -> bool:
        """Whether rows have holes inside a modality."""
        pairs = zip(self.entries or [], self.count, strict=False)
        return any(bool((own < n).any()) for own, n in pairs)

    def each(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """function(packs of a block, *shared) for every block of rows, in order: here, or wherever the engine works.

        What is summed over rows is summed within blocks and then over blocks, so that it is the same everywhere.
        """
        if self.distributed is not None:
            return self.distributed.each(_on_packs, function, self.widths, self.dtype, self.mean, *shared)
        if self.in_memory:
            return iter([function(self.packs(), *shared)])
        return (function(iter([packed]), *shared) for packed in self.packs())

    def each_chunk(self, function: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """As `each`, with function(views of a block, *shared): the rows as they are."""
        if self.distributed is not None:
            return self.distributed.each(function, *shared)
        pieces = (piece for views in self.chunks() for piece in _pieces(views)) if self.in_memory else self.chunks()
        return (function(views, *shared) for views in pieces)

    def packs(self) -> Iterator[Pack]:
        """All rows, centred, as packs. Data in memory are sorted by pattern once; others are packed chunk by chunk."""
        if not self.in_memory:
            for views in self.chunks():
                yield _centred_pack(views, self.widths, self.dtype, self.mean)
            return
        if self._packs is None:
            (views,) = self.chunks()
            _, order, _ = group_rows(views.present)
            parts = (views.take(rows) for rows in order.split(PACK_ROWS))
            self._packs = [_centred_pack(part, self.widths, self.dtype, self.mean) for part in parts]
        yield from self._packs

    def take(self, pick: Callable[[Views], Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
        """(values per modality, mask, row numbers in this process) of the rows that `pick` chooses of every chunk.

        In memory and in the dtype of the source; NaN for a modality that no row of a chunk has.
        """
        parts: list[list[Tensor]] = [[] for _ in self.names]
        masks, numbers, start = [], [], 0
        for views in self.chunks():
            index = pick(views)
            taken = views.take(index)
            masks.append(taken.present)
            numbers.append(index + start)
            start += len(views)
            for m, values in enumerate(taken.rows(0, len(index))):
                if values is None:
                    values = torch.full((len(index), self.widths[m]), float("nan"), device=self.device)
                parts[m].append(values.detach().to(self.dtype))
        return [torch.cat(part) for part in parts], torch.cat(masks), torch.cat(numbers)


def open_source(z: Any, present: Array | None, shared: bool = True, holes: bool = False) -> Source:
    """A source from the convention's `z` and `present`, or from an iterable of (z, present) chunks.

    `shared=False`: these rows are all there is, whatever other processes do. `holes`: rows may lack single entries.
    """
    if isinstance(z, DistributedRows):
        return _measured_source(z.names, z.widths, DistributedViews(z), in_memory=False, shared=shared)
    if isinstance(z, Mapping):
        views = check(z, present, min_rows=1, holes=holes)
        mapped = any(isinstance(a, np.memmap) for a in views.arrays.values())
        chunks: Callable[[], Iterator[Views]] = (lambda: _pieces(views)) if mapped else (lambda: iter([views]))
        return _measured_source(views.names, views.widths, chunks, in_memory=not mapped, shared=shared)
    if present is not None:
        raise InputError("present goes with a dict; in an iterable of chunks each chunk is a pair (z, present)")
    if not isinstance(z, Iterable):
        raise InputError(f"z must be a dict of arrays or an iterable of (z, present) chunks; got {type(z).__name__}")
    if iter(z) is z:
        raise InputError(
            "fit goes through the data several times, but a generator can be read only once; pass a list, or an object "
            "whose __iter__ starts anew (or feed it to partial_fit chunk by chunk)"
        )
    first = next(_checked(z, None, holes), None)
    if first is None:
        raise InputError("the iterable of chunks is empty; at least one (z, present) chunk needed")
    return _measured_source(
        first.names, first.widths, lambda: _checked(z, first, holes), in_memory=False, shared=shared
    )


def source_of(views: Views) -> Source:
    """Checked rows in memory as a source, together with those of the other processes."""
    return _measured_source(views.names, views.widths, lambda: iter([views]), in_memory=True, shared=True)


def mapped_source(source: Source, change: Callable[[Views], Views], widths: tuple[int, ...]) -> Source:
    """The same rows with other columns: `change` is applied to every chunk."""
    if source.distributed is not None:
        changed = DistributedViews(source.distributed.rows, (*source.distributed.changes, change))
        return _measured_source(source.names, widths, changed, source.in_memory, source.shared)
    return _measured_source(source.names, widths, lambda: map(change, source.chunks()), source.in_memory, source.shared)


def _checked(chunks: Iterable[Any], like: Views | None, holes: bool) -> Iterator[Views]:
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, (tuple, list)) or len(chunk) != 2:
            raise InputError(f"chunk {number} must be a pair (z, present); got {type(chunk).__name__}")
        names, widths = (None, None) if like is None else (like.names, like.widths)
        views = check(chunk[0], chunk[1], names=names, widths=widths, holes=holes)
        if len(views):
            yield views


def _pieces(views: Views) -> Iterator[Views]:
    """Rows piece by piece; the memory-mapped pages of a piece are given back before the next one is read."""
    arrays = {name: array for name, array in views.arrays.items() if array is not None}
    row_bytes = sum(a.shape[1] * a.dtype.itemsize for a in arrays.values())
    for start, stop in blocks_of_rows(len(views), row_bytes, distributed_rows.BLOCK_BYTES):
        yield Views(
            {name: None if array is None else array[start:stop] for name, array in views.arrays.items()},
            views.present[start:stop],
            views.widths,
            views.holes,
        )
        for array in arrays.values():
            release(array)


# ---- the first pass


@dataclass
class Measured:
    """What one pass over some rows finds: counts, means and sums of squares per modality."""

    rows: int
    dtype: torch.dtype
    together: Tensor  # (k, k) rows that have both modalities
    count: Tensor  # (k,)
    entries: list[Tensor]  # (d_m,) rows in which each column is observed
    mean: list[Tensor]  # (d_m,)
    square: list[Tensor]  # (d_m,) sum of squared deviations from the mean

    def add(self, other: Measured) -> None:
        """Take in further rows (Chan's update)."""
        self.rows += other.rows
        self.dtype = torch.float64 if torch.float64 in (self.dtype, other.dtype) else self.dtype
        self.together += other.together
        self.count += other.count
        for m in range(len(self.mean)):
            add_summary(other.entries[m], other.mean[m], other.square[m], self.entries[m], self.mean[m], self.square[m])


def _measure(views: Views) -> Measured:
    """One pass over the rows of a chunk."""
    device, dtype = views.present.device, torch.float32
    held = views.present.double()
    count = torch.zeros(len(views.names), dtype=torch.float64, device=device)
    entries, mean, square = ([count.new_zeros(width) for width in views.widths] for _ in range(3))
    for m, (name, array) in enumerate(views.arrays.items()):
        if array is None:
            continue
        add = add_entries if name in views.holes else add_rows
        if array.dtype in (torch.float64, np.dtype("float64")):
            dtype = torch.float64
        for start, stop in blocks_of_rows(len(views), 8 * array.shape[1], distributed_rows.BLOCK_BYTES):
            block = to_tensor(array[start:stop]).detach()[views.present[start:stop, m]].double()
            add(block, entries[m], mean[m], square[m])
            count[m] += len(block)
    return Measured(len(views), dtype, held.T @ held, count, entries, mean, square)


def _measured_source(
    names: tuple[str, ...],
    widths: tuple[int, ...],
    chunks: Callable[[], Iterator[Views]] | DistributedViews,
    in_memory: bool,
    shared: bool,
) -> Source:
    """A source with counts, means and sums of squares of all rows, over chunks and over processes."""
    distributed = chunks if isinstance(chunks, DistributedViews) else None
    opened = chunks.views if isinstance(chunks, DistributedViews) else chunks
    whole: Measured | None = None
    for part in map(_measure, opened()) if distributed is None else distributed.each(_measure):
        if whole is None:
            whole = part
        else:
            whole.add(part)
    if whole is None:
        raise InputError("there are no rows; at least one needed")
    count, mean, own = whole.count, whole.mean, whole.entries
    number = torch.tensor([float(whole.rows)], dtype=torch.float64, device=count.device)
    combine = all_sum if shared else list
    total, together, number, *sums = combine(
        [count, whole.together, number, *own, *(n * m for n, m in zip(own, mean, strict=True))]
    )
    entries, sums = sums[: len(own)], sums[len(own) :]
    centres = [s / n.clamp(min=1) for s, n in zip(sums, entries, strict=True)]
    square = combine([sq + n * (m - c) ** 2 for sq, n, m, c in zip(whole.square, own, mean, centres, strict=True)])
    return Source(
        names=names,
        widths=widths,
        chunks=opened,
        dtype=whole.dtype,
        in_memory=in_memory,
        device=count.device,
        count=total,
        mean=centres,
        square=square,
        rows=int(number.item()),
        together=together,
        shared=shared,
        distributed=distributed,
        entries=entries,
    )


# ---- what a source must be like to be fitted


def check_links(source: Source) -> None:
    """Say what the data cannot tell: modalities never seen, seen in few rows, or never together with the others."""
    entries = source.count[:, None] if source.entries is None else source.entries
    for name, count, own in zip(source.names, source.count.tolist(), entries, strict=True):
        never = (own == 0).nonzero()[:, 0].tolist()
        said = ""
        if count == 0:
            said = (
                f"modality {name!r} is observed in no row: nothing can be learned about it, it will be imputed by zeros"
            )
        elif count < 10 and source.rows >= 10:
            rows = f"{int(count)} of {source.rows} rows"
            said = f"modality {name!r} is observed in {rows} only: do not trust what is imputed for it"
        elif never:
            shown = ", ".join(map(str, never[:5])) + (", ..." if len(never) > 5 else "")
            said = (
                f"{len(never)} of {len(own)} columns of modality {name!r} are observed in no row (columns {shown}): "
                "nothing can be learned about them, they will be imputed by zeros"
            )
        if said:
            warnings.warn(said, UserWarning, stacklevel=3)
    groups = connected(source.together.cpu().numpy())
    seen = sorted((group for group in groups if source.count[group[0]] > 0), key=lambda group: group[0])
    if len(seen) > 1:
        apart = [source.names[m] for m in sorted(m for group in seen[1:] for m in group)]
        raise InputError(
            f"no row links {', '.join(apart)} with {', '.join(source.names[m] for m in seen[0])}, not even through a "
            "third modality, so nothing can be learned between them; add rows that have both, or fit them separately"
        )


def check_size(source: Source) -> None:
    """Squares of the values must fit the working dtype, with some to spare for sums."""
    limit = 1e30 if source.dtype == torch.float32 else 1e280
    for name, mean, variance in zip(source.names, source.mean, source.variance, strict=True):
        largest = float((variance + mean.square()).max())
        if not largest <= limit:
            raise InputError(
                f"z[{name!r}] has a column with mean square {largest:.3g}, too large for {source.dtype} "
                f"(limit {limit:g}); divide the modality by a constant" + (", or pass float64" if limit < 1e100 else "")
            )
