"""`retrieval`: recall and median rank of queries in a gallery, beside what chance gives.

Hubs, items that are near to everything, crowd out the right ones; correcting for how near an item is to all helps.

Cross-domain similarity local scaling (CSLS): with r(g) the mean score of g with its k nearest queries, and r(q) the mean
score of q with its k nearest gallery items, the score of a pair becomes

    2 s(q, g) - r(q) - r(g).

The result depends on all queries together, so it is an option that is asked for and named in what is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
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

    `scores` is (n, M); `place` and `items` are the own pairs, as from `RelevantItems.pairs`.
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


def ranks_of_scores(
    block: Callable[[int, int], Tensor], n: int, own: RelevantItems, step: int, band: float = 0.0
) -> Ranks:
    """Ranks from `block(start, stop)`, the scores of some queries; scores tie that differ by `band` at most."""
    parts = []
    for start, stop in blocks_of_rows(n, 1, step):
        scores = block(start, stop)
        here = own.to(scores.device)
        rows = torch.arange(start, stop, device=scores.device)
        parts.append(count(scores, *here.pairs(rows), band)[1].cpu())
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


HUBS = ("csls",)
DECIMALS = 12  # corrected scores that agree to so many decimals tie


def check_hubs(hubs: Any, k: Any) -> None:
    """None or the name of a correction, and how many neighbours it looks at."""
    if hubs is not None and hubs not in HUBS:
        raise InputError(f"hubs must be None or 'csls'; got {hubs!r}")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InputError(f"the number of neighbours that hubs='csls' looks at is a whole number from 1 on; got {k!r}")


def csls(scores: Array, k: int = 10) -> Array:
    """2 s(q, g) - r(q) - r(g) for a matrix of scores (Q, G); NumPy in, NumPy out, torch in, torch out."""
    table = to_tensor(scores)
    corrected = 2 * table - hubness(table, k)[:, None] - hubness(table.T, k)
    return corrected if isinstance(scores, Tensor) else corrected.numpy()


def hubness(scores: Tensor, k: int) -> Tensor:
    """The mean of the k largest scores in each row (of all, if there are fewer)."""
    return scores.topk(min(k, scores.shape[1]), dim=1).values.mean(1)


def ranks_without_hubs(queries: Side, gallery: Side, own: RelevantItems, k: int) -> Ranks:
    """Ranks by corrected inner products, in float64, never more than a block of scores in memory.

    r(q) is the same for all items that a query ranks, so it is left out.
    """
    left = queries.rows(slice(None), torch.float64)
    step = max(1, BLOCK_BYTES // (8 * max(len(queries), len(gallery))))
    near = torch.cat(
        [
            hubness(gallery.rows(slice(start, stop), torch.float64) @ left.T, k)
            for start, stop in blocks_of_rows(len(gallery), 1, step)
        ]
    )
    right = gallery.rows(slice(None), torch.float64)

    def block(start: int, stop: int) -> Tensor:
        return torch.round(2 * (left[start:stop] @ right.T) - near, decimals=DECIMALS)

    return ranks_of_scores(block, len(left), own, step)


FUNCTION_ROWS = 256  # queries per call of a score function


@torch.no_grad()
def retrieval(
    queries: Any = None,
    gallery: Any = None,
    query_ids: Any = None,
    gallery_ids: Any = None,
    ks: Sequence[int] = (1, 5, 10),
    *,
    similarity: str = "cosine",
    scores: Array | Callable[[Any, Any], Array] | None = None,
    per_query: bool = False,
    hubs: str | None = None,
    neighbours: int = 10,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Rank the gallery for every query and say how soon its own items come.

    Returns a dict with, over the n queries,

        "R@k"  = percent (0 to 100) of queries with an own item among the first k,
        "MedR" = median of the rank of the first own item, from 1,
        "n"    = number of queries. All count: a query without an own item in the gallery is an error.

    Ties favour nobody: where other items score the same as the best own one, R@k counts the probability of a hit and
    MedR takes the expected rank, all orders of the tied items being equally likely.

    Parameters
    ----------
    queries, gallery: (N, d) and (M, d), NumPy arrays (memory-mapped ones too) or torch tensors.
    query_ids, gallery_ids: own items of a query are all gallery items with its id; ids may repeat on both sides (several
        captions per picture). Without ids, row i belongs to row i.
    ks: the k of R@k.
    similarity: "cosine", or "dot" for inner products of vectors as they are.
    scores: larger is nearer; instead of the similarity. Either an (N, M) array (queries and gallery are then left out),
        or a function called as `scores(queries[i:j], gallery)` that returns (j - i, M); queries and gallery may then
        be anything it takes. Scores tie where they are equal.
    per_query: adds "hits", {"R@k": (n,) chance from 0 to 1 that a query finds an own item among the first k}, and
        "ranks", (n,) the expected rank of its first own item; NumPy arrays, for paired tests.
    hubs: "csls" ranks by 2 s(q, g) - r(g), where r(g) is the mean score of a gallery item with its nearest `neighbours`
        queries: items that are near to everything no longer crowd out the others. It looks at all queries together, so
        the result says so, in "hubs", and is not to be compared with one without. Not with a score function.
    engine: shares the queries out over the workers of an open engine, each of which gets the whole gallery; the result
        is the same. Only with vectors, and without `hubs`.

    Example
    -------
    >>> import numpy as np
    >>> texts, images = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), np.eye(2)
    >>> retrieval(texts, images, ["cat", "cat", "dog"], ["cat", "dog"], ks=(1,))
    {'R@1': 100.0, 'MedR': 1.0, 'n': 3}
    """
    _check_ks(ks)
    if similarity not in ("cosine", "dot"):
        raise InputError(f"similarity must be 'cosine' or 'dot'; got {similarity!r}. Other scores go in scores=")
    check_hubs(hubs, neighbours)
    nearest = None if hubs is None else int(neighbours)
    if engine is not None and (scores is not None or hubs is not None):
        raise InputError("an engine ranks vectors by their similarity; leave out scores and hubs, or the engine")
    if scores is None:
        ranks = _by_vectors(queries, gallery, query_ids, gallery_ids, similarity, nearest, engine)
    elif callable(scores):
        if hubs is not None:
            raise InputError("hubs needs all scores at once; pass vectors or an array of scores, not a function")
        ranks = _by_function(scores, queries, gallery, query_ids, gallery_ids)
    else:
        if queries is not None or gallery is not None:
            raise InputError(
                "scores is an array, which leaves queries and gallery nothing to say; pass one or the other"
            )
        ranks = _by_matrix(scores, query_ids, gallery_ids, nearest)
    hits = {f"R@{k}": ranks.hits(k).numpy() for k in ks}
    expected = ranks.expected().numpy()
    measured: dict[str, Any] = {name: 100 * float(each.mean()) for name, each in hits.items()}
    measured |= {"MedR": float(np.median(expected)), "n": len(expected)}
    if hubs is not None:
        measured["hubs"] = hubs
    return measured | {"hits": hits, "ranks": expected} if per_query else measured


def _by_vectors(
    queries: Any,
    gallery: Any,
    query_ids: Any,
    gallery_ids: Any,
    similarity: str,
    nearest: int | None,
    engine: Engine | None,
) -> Ranks:
    for name, array in (("queries", queries), ("gallery", gallery)):
        check_vectors(array, name)
    if queries.shape[1] != gallery.shape[1]:
        raise InputError(
            f"queries have width {queries.shape[1]} but the gallery has {gallery.shape[1]}; bring both into one space"
        )
    devices = [array.device if isinstance(array, Tensor) else torch.device("cpu") for array in (queries, gallery)]
    if devices[0] != devices[1]:
        raise InputError(f"queries are on {devices[0]} but the gallery is on {devices[1]}; move them to one device")
    own = relevant_items(query_ids, gallery_ids, len(queries), len(gallery))
    by_cosine = similarity == "cosine"
    left = scaled(queries, "queries", each=by_cosine or nearest is None, zero=not by_cosine)
    right = scaled(gallery, "gallery", each=by_cosine, zero=not by_cosine)
    if nearest is not None:
        return ranks_without_hubs(left, right, own, nearest)
    return ranks_of_products(left, right, own, engine)


def _by_matrix(scores: Any, query_ids: Any, gallery_ids: Any, nearest: int | None) -> Ranks:
    check_vectors(scores, "scores")
    if nearest is not None:
        scores = csls(_checked(scores, 0), nearest)
    own = relevant_items(query_ids, gallery_ids, *scores.shape)

    def block(start: int, stop: int) -> Tensor:
        return _checked(scores[start:stop], start)

    return ranks_of_scores(block, len(scores), own, max(1, BLOCK_BYTES // (8 * scores.shape[1])))


def _by_function(function: Callable[[Any, Any], Array], queries: Any, gallery: Any, q_ids: Any, g_ids: Any) -> Ranks:
    if not hasattr(queries, "__len__") or not hasattr(queries, "__getitem__") or isinstance(queries, dict):
        raise InputError(
            f"with a score function, queries must have a length and be sliceable; got {type(queries).__name__}"
        )
    n = len(queries)
    if n == 0:
        raise InputError("queries is empty; there is nothing to rank")
    first = function(queries[:FUNCTION_ROWS], gallery)
    check_vectors(first, "what scores(queries[0:...], gallery) returned")
    shape = tuple(first.shape)
    own = relevant_items(q_ids, g_ids, n, shape[1])

    def block(start: int, stop: int) -> Tensor:
        block = function(queries[start:stop], gallery) if start else first
        if tuple(block.shape) != (stop - start, shape[1]):
            raise InputError(
                f"scores(queries[{start}:{stop}], gallery) returned shape {tuple(block.shape)}; expected "
                f"{(stop - start, shape[1])}, a row per query and a column per gallery item"
            )
        return _checked(block, start)

    return ranks_of_scores(block, n, own, FUNCTION_ROWS)


def _checked(part: Array, start: int) -> Tensor:
    block = to_tensor(part).detach()
    bad = torch.isnan(block).any(1).nonzero()[:, 0]
    if len(bad):
        raise InputError(f"scores has NaN in the row of query {start + int(bad[0])}; a NaN cannot be ranked")
    return block if block.dtype in (torch.float32, torch.float64) else block.double()


def check_vectors(array: Any, name: str) -> None:
    """A non-empty matrix of real numbers."""
    if not isinstance(array, (np.ndarray, Tensor)):
        raise InputError(f"{name} must be a NumPy array or a torch tensor; got {type(array).__name__}")
    if array.ndim != 2:
        raise InputError(f"{name} must have two dimensions; got shape {tuple(array.shape)}")
    if 0 in array.shape:
        raise InputError(f"{name} is empty, shape {tuple(array.shape)}; there is nothing to rank")
    if isinstance(array, np.ndarray):
        real = array.dtype.kind in "fiu"
    else:
        real = array.dtype != torch.bool and not array.dtype.is_complex
    if not real:
        raise InputError(f"{name} has dtype {array.dtype}; it must hold real numbers")


def _check_ks(ks: Any) -> None:
    listed = list(ks) if isinstance(ks, (list, tuple)) else None
    if not listed or any(isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1 for k in listed):
        raise InputError(f"ks must be a list of whole numbers from 1 on, such as (1, 5, 10); got {ks!r}")


def chance(n: int, relevant: Sequence[Hashable] | None = None, ks: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """Percent of queries that find an own item among the first k of a random order, n items asking for each other.

    A query with r own items among n misses all of them with probability C(n - r, k) / C(n, k), so

        R@k = 100 mean over queries of 1 - prod over i < k of (n - r - i) / (n - i).

    Parameters
    ----------
    n : int
        Items; each is a query and a gallery item.
    relevant : sequence, optional
        One value per item; own items of a query are those with its value. Without it only the item itself.
    ks : sequence of int

    Examples
    --------
    >>> chance(200, ks=(1, 10))
    {'R@1': 0.5, 'R@10': 5.0}
    >>> chance(4, ["cat", "cat", "dog", "dog"], ks=(1,))
    {'R@1': 50.0}
    """
    sizes = Counter(range(n) if relevant is None else relevant)
    own = np.array([size for size in sizes.values() for _ in range(size)], dtype=float)
    return {f"R@{k}": chance_level(k, n, own) for k in ks}


def chance_level(k: int, n: int, own: float | np.ndarray = 1.0) -> float:
    """R@k in percent of a random order of n items, `own` of which are relevant to a query: 100 k / n for one.

    With an array of such numbers, one per query, the mean over the queries.

    Examples
    --------
    >>> chance_level(10, 200)
    5.0
    >>> chance_level(1, 200, own=20)
    10.0
    """
    steps = np.arange(min(k, n))
    missed = np.prod(np.maximum(n - np.asarray(own, dtype=float)[..., None] - steps, 0) / (n - steps), axis=-1)
    return round(float(100 * (1 - missed.mean())), 9)
