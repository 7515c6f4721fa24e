"""Named scores of a query against items with several modalities, and re-ranking by a matching head."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.registry import lookup
from calmrl.convention import Array, blocks_of_rows, check, to_tensor
from calmrl.errors import InputError
from calmrl.losses.gram import gram
from calmrl.losses.volume import adjugate, quadratic_forms
from calmrl.metrics.fuse import stacked, unit_anchor, unit_sum
from calmrl.metrics.retrieve import check_vectors, retrieval

SQUARE_DECIMALS = 12  # squared volumes and areas that agree so far are equal

Scorer = Callable[[Tensor], Tensor]  # unit queries (n, d) -> scores (n, M), larger is nearer


def _by_vector(make: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Scorer]:
    def prepare(items: Tensor, seen: Tensor) -> Scorer:
        vectors = normalize(make(items, seen), dim=1)
        return lambda queries: queries @ vectors.T

    return prepare


def _volume(items: Tensor, seen: Tensor) -> Scorer:
    weights, det = adjugate(gram(items, seen))  # (M, k, k), (M,)

    def block(queries: Tensor, rows: slice) -> Tensor:
        inner = torch.einsum("nd,mkd->nkm", queries, items[rows])  # (n, k, m)
        volume = _root(det[rows] - quadratic_forms(inner, weights[rows]))
        if int(seen[0].sum()) == 1:
            volume = torch.where(inner.sum(1) < 0, 2 - volume, volume)
        return -volume

    return _in_blocks(block, items)


def _area(items: Tensor, seen: Tensor) -> Scorer:
    k = items.shape[1]
    pairs = list(combinations(range(k), 2))
    products = items @ items.mT  # (M, k, k)
    number = int(seen[0].sum())

    def block(queries: Tensor, rows: slice) -> Tensor:
        inner = torch.einsum("nd,mkd->nkm", queries, items[rows])  # (n, k, m)
        if number == 1:
            return inner.sum(1)
        total = torch.zeros_like(inner[:, 0])
        for x, y in pairs:
            cross = 1 + products[rows, x, y] - inner[:, x] - inner[:, y]
            square = (2 - 2 * inner[:, x]) * (2 - 2 * inner[:, y]) - cross**2
            total -= torch.where(seen[rows, x] & seen[rows, y], _root(square) / 2, 0.0)
        return total / (number * (number - 1) / 2)

    return _in_blocks(block, items)


VECTORS = {"cosine": unit_sum, "anchor": unit_anchor}  # scores that are the cosine with one vector per item
# name -> function of the items' unit vectors (M, k, d), 0 where missing, and which are there (M, k)
SCORES: dict[str, Callable[[Tensor, Tensor], Scorer]] = {
    **{name: _by_vector(make) for name, make in VECTORS.items()},
    "volume": _volume,
    "area": _area,
}


@torch.no_grad()
def scored_retrieval(
    queries: Array,
    z: Mapping[str, Array],
    present: Array | None = None,
    query_ids: Any = None,
    gallery_ids: Any = None,
    ks: Sequence[int] = (1, 5, 10),
    *,
    score: str = "cosine",
    matching: Any = None,
    top: int = 50,
    per_query: bool = False,
) -> dict[str, Any]:
    """`retrieval` of items with several modalities by a named score.

    `queries` is (N, d), one modality; `z` and `present` are the other modalities of the gallery's items, all of width d,
    in one space. With unit vectors q and z^m, m in the modalities that the item has, nearer is

        "cosine"  larger cosine of q and the sum of the z^m,
        "anchor"  larger cosine of q and the leading left singular vector of the z^m,
        "volume"  smaller volume sqrt(det Gram(q, z^m ...)), as GRAM trains; with one modality and a negative cosine
                  2 - volume, so that the score tells q from -q as `GramLoss` does,
        "area"    smaller area of the triangle q, z^x, z^y, the mean over the pairs x, y of the item's modalities, as
                  TRIANGLE trains; with one modality the cosine.

    Volumes and areas of items with different numbers of modalities are not comparable, which is an error here.

    `matching` re-ranks: its `rerank(queries, gallery, present, scores, top)`, as `InstanceMatching` has it, sorts the
    `top` best items of every query again; it gets queries and gallery as they came. Report both, with and without.

    Examples
    --------
    >>> import numpy as np
    >>> z = {"image": np.eye(3), "text": np.eye(3)}
    >>> scored_retrieval(np.eye(3), z, ks=(1,), score="cosine")
    {'R@1': 100.0, 'MedR': 1.0, 'n': 3}
    """
    make = lookup(SCORES, score, "score")
    check_vectors(queries, "queries")
    views = check(z, present)
    if queries.shape[1] != views.widths[0]:
        raise InputError(
            f"queries have width {queries.shape[1]} but the items have {views.widths[0]}; bring both to one"
        )
    items, seen = stacked(views)
    numbers = sorted(set(seen.sum(1).tolist()))
    if score in ("volume", "area") and len(numbers) > 1:
        raise InputError(
            f"score {score!r} cannot compare items with {' and '.join(map(str, numbers))} modalities; score by 'cosine' or "
            "'anchor', or complete the items first"
        )
    asked = to_tensor(queries)
    if not bool((asked.double().norm(dim=1) > 0).all()):
        raise InputError("queries has zero or NaN vectors, which have no direction; leave them out with their ids")
    if matching is None and score in VECTORS:
        return retrieval(asked, VECTORS[score](items, seen), query_ids, gallery_ids, ks, per_query=per_query)
    first = make(normalize(items, dim=2), seen)

    def scores(some: Tensor, _: Any) -> Tensor:
        scores = first(normalize(some.double(), dim=1))
        if matching is None:
            return scores
        return matching.rerank(
            some, {name: to_tensor(array) for name, array in views.arrays.items()}, seen, scores, top
        )

    return retrieval(asked, None, query_ids, gallery_ids, ks, scores=scores, per_query=per_query)


def _in_blocks(block: Callable[[Tensor, slice], Tensor], items: Tensor) -> Scorer:
    """Scores of a few items at a time, so that what is between stays small."""

    def whole(queries: Tensor) -> Tensor:
        out = queries.new_empty((len(queries), len(items)))
        for start, stop in blocks_of_rows(len(items), 8 * len(queries) * items.shape[1]):
            out[:, start:stop] = block(queries, slice(start, stop))
        return out

    return whole


def _root(square: Tensor) -> Tensor:
    return square.round(decimals=SQUARE_DECIMALS).clamp(min=0).sqrt()
