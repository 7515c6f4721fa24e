"""The rank of the first relevant item for every query, from scores or from vectors; relevant are the items with its id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.engine import Engine
from calmrl.arrays import Array, blocks_of_rows, full_precision, to_tensor
from calmrl.errors import InputError


@dataclass(frozen=True)
class RelevantItems:
    """Gallery items sorted by id, and where each query's stretch of them begins and ends."""

    order: Tensor  # (M,) gallery items, those with the same id side by side
    group: Tensor  # (M,) where the stretch of each gallery item's id begins in `order`
    start: Tensor  # (N,) the same for each query
    stop: Tensor  # (N,) where it ends

    def pairs(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(place in `rows`, gallery item) of every own item of the queries `rows`, query by query."""
        lengths = self.stop[rows] - self.start[rows]
        place = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), lengths)
        first = self.start[rows] - (lengths.cumsum(0) - lengths)
        return place, self.order[torch.arange(len(place), device=rows.device) + first[place]]

    def to(self, device: torch.device) -> RelevantItems:
        return RelevantItems(*(part.to(device) for part in (self.order, self.group, self.start, self.stop)))


def relevant_items(query_ids: Any, gallery_ids: Any, n_queries: int, n_items: int) -> RelevantItems:
    """Match ids; without any, query i and gallery item i belong together."""
    if query_ids is None and gallery_ids is None:
        if n_queries != n_items:
            raise InputError(
                f"there are {n_queries} queries and {n_items} gallery items, so row i cannot belong to row i; pass "
                "query_ids and gallery_ids"
            )
        every = torch.arange(n_queries)
        return RelevantItems(every, every, every, every + 1)
    if query_ids is None or gallery_ids is None:
        given, absent = ("gallery_ids", "query_ids") if query_ids is None else ("query_ids", "gallery_ids")
        raise InputError(f"{given} is given but {absent} is not; pass both, or neither if row i belongs to row i")
    wanted, there = _listed(query_ids, "query_ids", n_queries), _listed(gallery_ids, "gallery_ids", n_items)
    number: dict[Any, int] = {}
    items = torch.tensor([number.setdefault(name, len(number)) for name in there])
    unknown = [i for i, name in enumerate(wanted) if name not in number]
    if unknown:
        shown = ", ".join(f"{wanted[i]!r} (query {i})" for i in unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        raise InputError(
            f"{len(unknown)} of {n_queries} queries have an id that no gallery item has: {shown}; they could never be "
            "found. Leave them out, or add their items to the gallery"
        )
    queries = torch.tensor([number[name] for name in wanted])
    ends = torch.bincount(items, minlength=len(number)).cumsum(0)
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    return RelevantItems(items.argsort(stable=True), begins[items], begins[queries], ends[queries])


def _listed(ids: Any, name: str, n: int) -> list[Any]:
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InputError(f"{name} must be a list or an array with one id per row; got {type(ids).__name__}")
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if not isinstance(listed, list) or len(listed) != n:
        got = len(listed) if isinstance(listed, list) else "a single value"
        raise InputError(f"{name} must have one id per row, {n}; got {got}")
    for i, one in enumerate(listed):
        try:
            hash(one)
        except TypeError:
            raise InputError(f"{name}[{i}] is a {type(one).__name__}; an id must be a single value") from None
    return listed


BLOCK_BYTES = 1 << 27  # scores held at once


@dataclass(frozen=True)
class Ranks:
    """Counts per query, each (N,) int64."""

    above: Tensor
    tied: Tensor
    own: Tensor

    def hits(self, k: int) -> Tensor:
        """(N,) probability that an own item is among the first k."""
        left = k - self.above
        miss = torch.ones(len(left), dtype=torch.float64)
        rows = (left > 0).nonzero()[:, 0]
        miss[rows[self.tied[rows] == 0]] = 0
        rows = rows[self.tied[rows] > 0]
        left, tied, own = left[rows], self.tied[rows].double(), self.own[rows].double()
        last = int(torch.minimum(left, self.tied[rows] + 1).max()) if len(rows) else 0
        for drawn in range(last):  # the next place goes to one of the others, too
            factor = (tied - drawn).clamp(min=0) / (tied + own - drawn).clamp(min=1)
            miss[rows] *= torch.where(drawn < left, factor, 1.0)
        return 1 - miss

    def expected(self) -> Tensor:
        """(N,) expected rank of the first own item, from 1."""
        return self.above + (self.tied + self.own + 1).double() / (self.own + 1)


def count(scores: Tensor, place: Tensor, items: Tensor, band: float) -> tuple[Tensor, Tensor]:
    """(best own score (n,), counts (3, n)): others above it by more than `band`, others within `band`, own within it.

    `scores` is (n, M); `place` and `items` are the own pairs, as from `Own.pairs`.
    """
    mine = scores[place, items]
    best = scores.new_full((len(scores),), -torch.inf).scatter_reduce_(0, place, mine, "amax")
    low, high = best - band, best + band
    above = true_per_row(scores > high[:, None])
    near = true_per_row(scores >= low[:, None]) - above
    own = torch.zeros_like(above).index_add_(0, place, (mine >= low[place]).long())
    return best, torch.stack([above, near - own, own])


def true_per_row(mask: Tensor) -> Tensor:
    """mask.sum(1); on the CPU by NumPy, whose count of a bool row is many times faster."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.count_nonzero(mask.numpy(), axis=1).astype(np.int64))
    return mask.sum(1)


def ranks_of_scores(block: Callable[[int, int], Tensor], n: int, own: RelevantItems, step: int) -> Ranks:
    """Ranks from `block(start, stop)`, the scores of some queries; only equal scores tie."""
    parts = []
    for start, stop in blocks_of_rows(n, 1, step):
        scores = block(start, stop)
        here = own.to(scores.device)
        rows = torch.arange(start, stop, device=scores.device)
        parts.append(count(scores, *here.pairs(rows), 0.0)[1].cpu())
    return Ranks(*torch.cat(parts, dim=1))


TIE = 1e-12
SHARE = 8  # blocks that a task of an engine does: it converts the gallery once for all of them
CROWDED = 64  # a query with more than 1/64 of the gallery too close to call is computed again as a whole


@dataclass(frozen=True)
class Side:
    """Vectors and the factor (N,) that brings each to a length of at most one."""

    vectors: Array
    scale: Tensor  # float64

    def __len__(self) -> int:
        return len(self.scale)

    def rows(self, rows: Tensor | slice, dtype: torch.dtype) -> Tensor:
        """Scaled vectors; computed in float64, then rounded."""
        if isinstance(rows, Tensor) and not isinstance(self.vectors, Tensor):
            values = to_tensor(self.vectors[rows.numpy()])
        else:
            values = to_tensor(self.vectors[rows])
        return (values.detach().double() * self.scale[rows, None]).to(dtype)


def scaled(vectors: Array, name: str, each: bool, zero: bool) -> Side:
    """Check vectors and scale them to unit length each, or all by the longest one; `zero` allows zero vectors."""
    norms = torch.cat(
        [
            to_tensor(vectors[start:stop]).detach().double().norm(dim=1)
            for start, stop in blocks_of_rows(len(vectors), 8 * vectors.shape[1])
        ]
    )
    bad = (~torch.isfinite(norms)).nonzero()[:, 0]
    if len(bad):
        raise InputError(
            f"{name} has NaN, infinite or overflowing values in {len(bad)} of {len(norms)} rows, the first is row "
            f"{int(bad[0])}; repair these rows or leave them out together with their ids"
        )
    empty = (norms == 0).nonzero()[:, 0]
    if len(empty) and not zero:
        raise InputError(
            f"{name} has {len(empty)} zero vectors, the first in row {int(empty[0])}; they have no direction and so no "
            "cosine. Leave them out, or pass similarity='dot'"
        )
    lengths = norms if each else norms.max().expand(len(norms))
    return Side(vectors, 1 / torch.where(lengths > 0, lengths, 1.0))


def ranks_of_products(queries: Side, gallery: Side, own: RelevantItems, engine: Engine | None = None) -> Ranks:
    """Ranks by inner products of scaled vectors; an engine shares the queries out."""
    step = max(1, BLOCK_BYTES // (4 * len(gallery)))
    blocks = list(blocks_of_rows(len(queries), 1, step))
    if engine is None:
        return Ranks(*_count_blocks(blocks, queries, gallery, own))
    shares = [blocks[i : i + SHARE] for i in range(0, len(blocks), SHARE)]
    return Ranks(*torch.cat(list(engine.map(_count_blocks, shares, queries, gallery, own)), dim=1))


def _count_blocks(blocks: list[tuple[int, int]], queries: Side, gallery: Side, own: RelevantItems) -> Tensor:
    """(3, n) counts of the queries in some blocks."""
    device = gallery.scale.device
    own = own.to(device)
    width, n_items = gallery.vectors.shape[1], len(gallery)
    items = torch.empty((n_items, width), dtype=torch.float32, device=device)
    for start, stop in blocks_of_rows(n_items, 8 * width):
        items[start:stop] = gallery.rows(slice(start, stop), torch.float32)
    longest = max(stop - start for start, stop in blocks)
    scores = torch.empty((longest, n_items), dtype=torch.float32, device=device)
    error = rounding(width)
    parts = []
    for start, stop in blocks:
        with full_precision(scores):
            block = torch.mm(queries.rows(slice(start, stop), torch.float32), items.T, out=scores[: stop - start])
        rows = torch.arange(start, stop, device=device)
        best, counts = count(block, *own.pairs(rows), 2 * error)  # right wherever only one item is near, an own one
        near = counts[1] + counts[2]
        crowded = near > max(1, n_items // CROWDED)
        few = ((near > 1) & ~crowded).nonzero()[:, 0]
        if len(few):
            theirs = [block[i] for i in few.tolist()]
            settled = _settle_few(queries, gallery, own, rows[few], theirs, best[few], 2 * error)
            counts[0, few] += settled[0]
            counts[1:, few] = settled[1:]
        if bool(crowded.any()):
            counts[:, crowded] = _count_whole(queries, gallery, own, rows[crowded])
        parts.append(counts.cpu())
    return torch.cat(parts, dim=1)


def rounding(width: int) -> float:
    """Bound on the error of a float32 inner product of two vectors of length <= 1, whatever the order of summation."""
    reduced = torch.get_float32_matmul_precision() != "highest"  # factors may be cut to bfloat16
    return (width + 8) * 2.0**-24 + (2.0**-6 if reduced else 0.0)


def _settle_few(
    queries: Side, gallery: Side, own: RelevantItems, rows: Tensor, block: list[Tensor], best: Tensor, band: float
) -> Tensor:
    """(3, n) counts among the items within `band` of the best own score, compared in float64."""
    rows_counted = []
    left = queries.rows(rows, torch.float64)
    for query, row, scores, middle in zip(left, rows, block, best, strict=True):
        near = ((scores >= middle - band) & (scores <= middle + band)).nonzero()[:, 0]
        exact = gallery.rows(near, torch.float64) @ query
        mine = own.group[near] == own.start[row]
        top = exact[mine].max()
        same = (exact - top).abs() <= TIE
        rows_counted.append(torch.stack([(exact > top + TIE).sum(), (same & ~mine).sum(), (same & mine).sum()]))
    return torch.stack(rows_counted, dim=1)


def _count_whole(queries: Side, gallery: Side, own: RelevantItems, rows: Tensor) -> Tensor:
    """(3, n) counts with all products of these queries in float64."""
    step = max(1, BLOCK_BYTES // (8 * len(gallery)))
    scores = torch.empty((min(step, len(rows)), len(gallery)), dtype=torch.float64, device=rows.device)
    parts = []
    for start, stop in blocks_of_rows(len(rows), 1, step):
        left, block = queries.rows(rows[start:stop], torch.float64), scores[: stop - start]
        for first, last in blocks_of_rows(len(gallery), 8 * gallery.vectors.shape[1]):
            block[:, first:last] = left @ gallery.rows(slice(first, last), torch.float64).T
        parts.append(count(block, *own.pairs(rows[start:stop]), TIE)[1])
    return torch.cat(parts, dim=1)
