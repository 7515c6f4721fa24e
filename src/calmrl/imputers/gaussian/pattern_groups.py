"""Rows grouped by missing pattern: everything that depends only on the pattern is computed once for all its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pack:
    """Some rows, sorted by pattern. Modality m keeps only the rows that have it, so every pattern is a slice everywhere."""

    patterns: Tensor  # (P, k) bool
    bounds: list[int]  # P + 1 positions among the sorted rows
    z: list[Tensor]  # (N_m, d_m): rows that have modality m, in sorted order
    offsets: list[list[int]]  # [m][p]: where pattern p starts in z[m]
    order: Tensor  # (N,) original index of each sorted row
    places: list[Tensor]  # (N_m,): where the rows of z[m] are among the sorted rows

    def __len__(self) -> int:
        return len(self.order)

    @property
    def sizes(self) -> list[int]:
        """Rows of each pattern."""
        return [stop - start for start, stop in pairwise(self.bounds)]

    def slices(self, p: int) -> list[tuple[int, Tensor]]:
        """(modality, its rows) for every modality that pattern p has."""
        size = self.bounds[p + 1] - self.bounds[p]
        held = torch.nonzero(self.patterns[p])[:, 0].tolist()
        return [(m, self.z[m][self.offsets[m][p] : self.offsets[m][p] + size]) for m in held]


def group(present: Tensor) -> tuple[Tensor, Tensor, list[int]]:
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


def pack(
    z: Sequence[Tensor | None], present: Tensor, widths: Sequence[int], dtype: torch.dtype, shift: Sequence[Tensor] = ()
) -> Pack:
    """Sort rows by pattern, keep what is observed, convert to the working dtype and subtract `shift`, if there is one.

    Differentiable in `z`; values in missing rows are never read. `None` stands for a modality that no row has.
    """
    patterns, order, bounds = group(present)
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
        held = patterns[:, m].tolist()
        starts, position = [], 0
        for size, has in zip(sizes, held, strict=True):
            starts.append(position)
            position += size * has
        offsets.append(starts)
    return Pack(patterns, bounds, rows, offsets, order, places)
