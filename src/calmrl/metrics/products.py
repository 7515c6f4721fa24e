"""Ranks by inner products: float32 decides what it can, float64 the rest.

A block of float32 products says for almost every gallery item on which side of the best own score it lies. Only items
closer to it than the rounding error allows are computed again in float64. Scores there that agree to TIE (relative to
the largest possible score) are equal: copies of an item tie wherever they stand in the gallery, and neither the size of
the blocks nor the number of threads changes a rank.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from calmrl._support.engine import Engine
from calmrl.convention import Array, blocks_of_rows, full_precision, to_tensor
from calmrl.errors import InputError
from calmrl.metrics.own_items import Own
from calmrl.metrics.ranks import BLOCK_BYTES, Ranks, count

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


def ranks_of_products(queries: Side, gallery: Side, own: Own, engine: Engine | None = None) -> Ranks:
    """Ranks by inner products of scaled vectors; an engine shares the queries out."""
    step = max(1, BLOCK_BYTES // (4 * len(gallery)))
    blocks = list(blocks_of_rows(len(queries), 1, step))
    if engine is None:
        return Ranks(*_count_blocks(blocks, queries, gallery, own))
    shares = [blocks[i : i + SHARE] for i in range(0, len(blocks), SHARE)]
    return Ranks(*torch.cat(list(engine.map(_count_blocks, shares, queries, gallery, own)), dim=1))


def _count_blocks(blocks: list[tuple[int, int]], queries: Side, gallery: Side, own: Own) -> Tensor:
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
    queries: Side, gallery: Side, own: Own, rows: Tensor, block: list[Tensor], best: Tensor, band: float
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


def _count_whole(queries: Side, gallery: Side, own: Own, rows: Tensor) -> Tensor:
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
