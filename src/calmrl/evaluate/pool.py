"""Mixed-pool retrieval: gallery items have different modalities, and all compete in one pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl.anchors import anchor
from calmrl.convention import Array, Views, check, to_tensor
from calmrl.errors import InputError
from calmrl.evaluate.retrieve import check_vectors, retrieval
from calmrl.registry import lookup


@torch.no_grad()
def mixed_pool(
    queries: Array,
    z: Mapping[str, Array],
    present: Array | None = None,
    query_ids: Any = None,
    gallery_ids: Any = None,
    ks: Sequence[int] = (1, 5, 10),
    *,
    scoring: str = "raw",
    completed: Any = None,
) -> dict[str, float]:
    """Retrieval among items of which each has only some modalities, by cosine between a query and one vector per item.

    `queries` is (N, d); `z` and `present` describe the gallery by the shared convention, all modalities of the queries'
    width d, in one space. The vector of an item is, with unit vectors z^m and Omega the modalities it has,

        "raw"       sum over m in Omega of z^m,
        "centred"   the same after subtracting from each modality its mean over the items that have it, and from the
                    queries theirs: differences between modalities as a whole no longer count,
        "anchor"    the leading left singular vector of the z^m in Omega (`calmrl.anchors.anchor`): "raw" for one
                    modality and for two with a positive cosine; for two with a negative cosine its side is arbitrary,
        "imputed"   sum over all m of the completed z^m. `completed` is a fitted imputer of `calmrl.imputers`, or the
                    dict that its `transform` returned.

    The other arguments and the result are those of `retrieval`.
    """
    make = lookup(SCORINGS, scoring, "scoring")
    if (completed is not None) != (scoring == "imputed"):
        raise InputError(
            f"scoring {scoring!r} "
            + ("needs completed=" if completed is None else "does not read completed=")
            + '; pass an imputer or a completed dict with scoring="imputed", and only there'
        )
    check_vectors(queries, "queries")
    views = check(z, present)
    if completed is not None:
        filled = completed if isinstance(completed, Mapping) else _complete(completed, z, views)
        views = check(filled, torch.ones((len(views), len(filled)), dtype=torch.bool))
    if len(set(views.widths)) > 1:
        said = ", ".join(f"{name}: {width}" for name, width in zip(views.names, views.widths, strict=True))
        raise InputError(f"a pool needs modalities of one width; got {said}. Project them to one space first")
    stacked = torch.stack([to_tensor(array).double() for array in views.arrays.values()], dim=1)  # (M, k, d)
    seen = views.present[:, :, None]
    return retrieval(*make(queries, torch.where(seen, stacked, 0.0), seen), query_ids, gallery_ids, ks)


def _complete(imputer: Any, z: Mapping[str, Array], views: Views) -> dict[str, Array]:
    if not hasattr(imputer, "transform"):
        raise InputError(f"completed must be a fitted imputer or a dict of arrays; got {type(imputer).__name__}")
    return imputer.transform(z, views.present if isinstance(views.given(), Tensor) else views.present.numpy())


def _summed(queries: Array, z: Tensor, seen: Tensor) -> tuple[Array, Tensor]:
    return queries, normalize(z, dim=2).sum(1)


def _centred(queries: Array, z: Tensor, seen: Tensor) -> tuple[Array, Tensor]:
    unit = normalize(z, dim=2)
    middle = unit.sum(0) / seen.sum(0).clamp(min=1)  # (k, d)
    asked = normalize(to_tensor(queries).double(), dim=1)
    return asked - asked.mean(0), normalize(torch.where(seen, unit - middle, 0.0), dim=2).sum(1)


def _anchored(queries: Array, z: Tensor, seen: Tensor) -> tuple[Array, Tensor]:
    unit = normalize(z, dim=2)
    return queries, anchor({str(m): unit[:, m] for m in range(z.shape[1])}, seen[:, :, 0])


SCORINGS: dict[str, Callable[[Array, Tensor, Tensor], tuple[Array, Tensor]]] = {
    "raw": _summed,
    "centred": _centred,
    "anchor": _anchored,
    "imputed": _summed,
}
