"""Ranks by counting: how many gallery items score above a query's best own item, and how many score the same.

No sorting, and never more than a block of scores in memory. With `above` = a, `tied` = t other items as good as the best
own one, and `own` = o own items that good, every order of the t + o being equally likely:

    P(an own item among the first k) = 1 - C(t, j) / C(t + o, j)   with j = k - a, if 0 < j,  else 0,
    E(rank of the first own item)    = a + (t + o + 1) / (o + 1).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calmrl.convention import blocks_of_rows
from calmrl.metrics.own_items import Own

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


def ranks_of_scores(block: Callable[[int, int], Tensor], n: int, own: Own, step: int) -> Ranks:
    """Ranks from `block(start, stop)`, the scores of some queries; only equal scores tie."""
    parts = []
    for start, stop in blocks_of_rows(n, 1, step):
        scores = block(start, stop)
        here = own.to(scores.device)
        rows = torch.arange(start, stop, device=scores.device)
        parts.append(count(scores, *here.pairs(rows), 0.0)[1].cpu())
    return Ranks(*torch.cat(parts, dim=1))
