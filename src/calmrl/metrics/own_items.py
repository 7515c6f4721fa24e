"""Which gallery items are a query's own: those with its id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calmrl.errors import InputError


@dataclass(frozen=True)
class Own:
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

    def to(self, device: torch.device) -> Own:
        return Own(*(part.to(device) for part in (self.order, self.group, self.start, self.stop)))


def own_items(query_ids: Any, gallery_ids: Any, n_queries: int, n_items: int) -> Own:
    """Match ids; without any, query i and gallery item i belong together."""
    if query_ids is None and gallery_ids is None:
        if n_queries != n_items:
            raise InputError(
                f"there are {n_queries} queries and {n_items} gallery items, so row i cannot belong to row i; pass "
                "query_ids and gallery_ids"
            )
        every = torch.arange(n_queries)
        return Own(every, every, every, every + 1)
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
    return Own(items.argsort(stable=True), begins[items], begins[queries], ends[queries])


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
