"""Items with several modalities: one vector for each (`fuse`), scores of whole items, and pools of items with holes."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.registry import lookup
from calmrl.anchors import anchor
from calmrl.arrays import Array, Views, blocks_of_rows, check, to_tensor
from calmrl.errors import InputError
from calmrl.losses.volume import adjugate, gram, quadratic_forms
from calmrl.metrics.retrieve import check_vectors, retrieval
from calmrl.protocols import Embedder


def unit_sum(z: Tensor, seen: Tensor) -> Tensor:
    """(N, d) sum of each row's unit vectors; `z` is (N, k, d) with 0 where `seen` (N, k) is False."""
    return normalize(z, dim=2).sum(1)


def unit_anchor(z: Tensor, seen: Tensor) -> Tensor:
    """(N, d) anchors of each row's unit vectors."""
    unit = normalize(z, dim=2)
    return anchor({str(m): unit[:, m] for m in range(z.shape[1])}, seen)


FUSIONS = {"mean": unit_sum, "anchor": unit_anchor, "imputed": unit_sum}


@torch.no_grad()
def fuse(
    z: Mapping[str, Array], present: Array | None = None, fusion: str = "mean", *, completed: Any = None
) -> Tensor:
    """(N, d) float64 unit vectors, one per row, from the modalities it has; 0 for a row that has none.

    With unit vectors z^m of one width, in one space, and Omega the modalities of a row:

        "mean"     sum over m in Omega of z^m,
        "anchor"   the leading left singular vector of the z^m in Omega,
        "imputed"  sum over all m of the completed z^m. `completed` is a fitted imputer of `calmrl.imputers`, or the
                   dict that its `transform` returned,

    each divided by its length.

    Examples
    --------
    >>> import numpy as np
    >>> z = {"image": np.eye(3), "text": np.eye(3)}
    >>> fuse(z, np.array([[True, True], [True, False], [False, True]])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    make = lookup(FUSIONS, fusion, "fusion")
    _check_completed("fusion", fusion, completed, ("imputed",), "an imputer or a completed dict")
    views = check(z, present, empty_rows=True)
    some = views.present.any(1).nonzero()[:, 0]
    part = views.take(some)
    if isinstance(completed, Mapping):
        part = _whole(completed, len(views)).take(some)
    elif completed is not None and len(some):
        if not hasattr(completed, "transform"):
            raise InputError(f"completed must be a fitted imputer or a dict of arrays; got {type(completed).__name__}")
        part = _whole(completed.transform(part.arrays, part.mask()), len(some))
    values, seen = stacked(part)
    out = values.new_zeros((len(views), values.shape[2]))
    out[some] = normalize(make(values, seen), dim=1)
    return out


def stacked(views: Views) -> tuple[Tensor, Tensor]:
    """((N, k, d) float64 values with 0 where missing, (N, k) present)."""
    if len(set(views.widths)) > 1:
        widths = ", ".join(f"{name}: {width}" for name, width in zip(views.names, views.widths, strict=True))
        raise InputError(f"one vector per item needs modalities of one width; got {widths}. Project them first")
    values = torch.stack([to_tensor(array).detach().double() for array in views.arrays.values()], dim=1)  # (N, k, d)
    return torch.where(views.present[:, :, None], values, 0.0), views.present


def _check_completed(option: str, value: str, completed: Any, needed: tuple[str, ...], what: str) -> None:
    if (completed is not None) != (value in needed):
        named = " or ".join(f'"{one}"' for one in needed)
        raise InputError(
            f"{option} {value!r} {'needs' if completed is None else 'does not read'} completed=; pass {what} with "
            f"{option}={named}, and only there"
        )


def _whole(filled: Mapping[str, Array], n: int) -> Views:
    """A completed dict, in which each of the n rows has everything."""
    return check(filled, torch.ones((n, len(filled)), dtype=torch.bool))


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


SCORINGS = {"raw": "mean", "centred": None, "anchor": "anchor", "imputed": "imputed", "posterior": None}  # their fusion
NOTHING = 1e-9  # the length of a centred unit vector that is zero but for rounding


@torch.no_grad()
def mixed_pool(
    queries: Any,
    z: Mapping[str, Array],
    present: Array | None = None,
    query_ids: Any = None,
    gallery_ids: Any = None,
    ks: Sequence[int] = (1, 5, 10),
    *,
    scoring: str = "raw",
    completed: Any = None,
    per_query: bool = False,
    hubs: str | None = None,
) -> dict[str, Any]:
    """Retrieval among items of which each has only some modalities, by cosine between a query and one vector per item.

    `queries` is (N, d); `z` and `present` describe the gallery by the shared convention, all modalities of the queries'
    width d, in one space. The vector of an item is, with unit vectors z^m and Omega the modalities it has,

        "raw"       sum over m in Omega of z^m,
        "centred"   the same after subtracting from each modality its mean over the items that have it, and from the
                    queries theirs: differences between modalities as a whole no longer count. A vector that is its
                    own mean, as that of a modality which one item has, stays as it is,
        "anchor"    the leading left singular vector of the z^m in Omega (`calmrl.anchors.anchor`): "raw" for one
                    modality and for two with a positive cosine; for two with a negative cosine its side is arbitrary,
        "imputed"   sum over all m of the completed z^m. `completed` is a fitted imputer of `calmrl.imputers`, or the
                    dict that its `transform` returned,
        "posterior" the posterior mean of the latents given Omega. `completed` is a fitted `Aligner` or `GaussianImputer`,
                    or anything with their `embed`; `queries` is then a dict of the query's modalities, which also go
                    through `embed`. Widths may differ, and nothing is made a unit vector before.

    The other arguments and the result are those of `retrieval`; hubs="csls" works with every scoring.

    Examples
    --------
    >>> import numpy as np
    >>> z = {"image": np.eye(3), "text": np.eye(3)}
    >>> present = np.array([[True, True], [True, False], [False, True]])
    >>> mixed_pool(np.eye(3), z, present, ks=(1,))
    {'R@1': 100.0, 'MedR': 1.0, 'n': 3}
    """
    fusion = lookup(SCORINGS, scoring, "scoring")
    _check_completed("scoring", scoring, completed, ("imputed", "posterior"), "what completes")
    if scoring == "posterior":
        asked, items = _embedded(queries, z, present, completed)
    else:
        check_vectors(queries, "queries")
        views = check(z, present)  # here every item needs something
        if fusion is None:
            asked, items = _centred(queries, *stacked(views))
        else:
            asked, items = queries, fuse(z, views.present, fusion, completed=completed)
    return retrieval(asked, items, query_ids, gallery_ids, ks, per_query=per_query, hubs=hubs)


def _embedded(queries: Any, z: Mapping[str, Array], present: Array | None, imputer: Any) -> tuple[Array, Array]:
    if not isinstance(imputer, Embedder):
        raise InputError(
            f"scoring 'posterior' needs an imputer with embed, as the Gaussian; got {type(imputer).__name__}"
        )
    if not isinstance(queries, Mapping):
        raise InputError(f"scoring 'posterior' needs queries as a dict {{'text': array}}; got {type(queries).__name__}")
    return imputer.embed(queries), imputer.embed(z, present)


def _centred(queries: Array, z: Tensor, present: Tensor) -> tuple[Array, Tensor]:
    unit, seen = normalize(z, dim=2), present[:, :, None]
    middle = unit.sum(0) / seen.sum(0).clamp(min=1)  # (k, d)
    asked = normalize(to_tensor(queries).double(), dim=1)
    return _minus(asked, asked.mean(0)), normalize(torch.where(seen, _minus(unit, middle), 0.0), dim=2).sum(1)


def _minus(unit: Tensor, middle: Tensor) -> Tensor:
    """unit - middle, but the unit vector itself where nothing is left of it: a zero vector has no direction."""
    rest = unit - middle
    return torch.where(rest.norm(dim=-1, keepdim=True) > NOTHING, rest, unit)
