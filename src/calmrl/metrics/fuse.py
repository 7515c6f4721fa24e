"""One vector per item from the modalities it has."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.registry import lookup
from calmrl.anchors import anchor
from calmrl.convention import Array, Views, check, to_tensor
from calmrl.errors import InputError


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
    if (completed is not None) != (fusion == "imputed"):
        raise InputError(
            f"fusion {fusion!r} "
            + ("needs completed=" if completed is None else "does not read completed=")
            + '; pass an imputer or a completed dict with fusion="imputed", and only there'
        )
    views = check(z, present, empty_rows=True)
    some = views.present.any(1).nonzero()[:, 0]
    part = views.take(some)
    if isinstance(completed, Mapping):
        part = _whole(completed, len(views)).take(some)
    elif completed is not None and len(some):
        part = _whole(complete(completed, part), len(some))
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


def complete(imputer: Any, views: Views) -> dict[str, Array]:
    """What the imputer's `transform` makes of the rows."""
    if not hasattr(imputer, "transform"):
        raise InputError(f"completed must be a fitted imputer or a dict of arrays; got {type(imputer).__name__}")
    present = views.present if isinstance(views.given(), Tensor) else views.present.numpy()
    return imputer.transform(views.arrays, present)


def _whole(filled: Mapping[str, Array], n: int) -> Views:
    """A completed dict, in which each of the n rows has everything."""
    return check(filled, torch.ones((n, len(filled)), dtype=torch.bool))
