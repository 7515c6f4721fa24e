"""Mixed-pool retrieval: gallery items have different modalities, and all compete in one pool."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.registry import lookup
from calmrl.convention import Array, check, to_tensor
from calmrl.errors import InputError
from calmrl.metrics.fuse import fuse, stacked
from calmrl.metrics.retrieve import check_vectors, retrieval
from calmrl.protocols import Embedder

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
    if (completed is not None) != (scoring in ("imputed", "posterior")):
        raise InputError(
            f"scoring {scoring!r} "
            + ("needs completed=" if completed is None else "does not read completed=")
            + '; pass what completes with scoring="imputed" or "posterior", and only there'
        )
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
