"""Where several gallery items count as found: how many others stand above each of them, and what smaller galleries find.

A random gallery of n holds the query's own row and n - 1 of the g - 1 other items, relevant ones among them. Let c_j be the
number of items above the j-th best relevant one that are not relevant, up to the own row, the J-th, which is always there.
The query is a hit at k with probability

    sum over j < J of  P(1 ... j-1 are not drawn, j is)  P(at most k - 1 of c_j among the n - 2 other draws)
    + P(1 ... J-1 are not drawn)                         P(at most k - 1 of c_J among the n - 1 draws).

With one relevant item only the last term is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import hypergeom
from torch import Tensor

BEFORE = 32  # relevant items kept besides the own row; more of them matter only in galleries of a few percent

NEGLIGIBLE = 1e-6  # probability of a case that is left out


@dataclass(frozen=True)
class OwnScores:
    """Per query: others above its relevant items, how many of these there are, and which queries share them."""

    above: np.ndarray  # (n, J) float64, best item first, the own row last, NaN between; halves where scores tie
    relevant: np.ndarray  # (n,) int64, relevant items in the gallery, the own row included
    group: np.ndarray  # (n,) int64, the same number where queries of one fold have the same relevant items

    @staticmethod
    def join(parts: Sequence[OwnScores]) -> OwnScores:
        """The queries of several folds."""
        width = max(part.above.shape[1] for part in parts)
        padded, groups, start = [], [], 0
        for part in parts:
            gap = np.full((len(part.above), width - part.above.shape[1]), np.nan)
            padded.append(np.concatenate([part.above[:, :-1], gap, part.above[:, -1:]], axis=1))
            groups.append(start + part.group)
            start += int(part.group.max(initial=-1)) + 1
        return OwnScores(
            np.concatenate(padded), np.concatenate([part.relevant for part in parts]), np.concatenate(groups)
        )

    def hits(self, k: int, n: int, gallery: np.ndarray) -> np.ndarray:
        """(queries,) probability of a hit at k in a random gallery of n; `gallery` (queries,) is the size that was seen."""
        left = (gallery - 1).astype(float)  # items that may be drawn, without those already known not to be
        undrawn, chance = np.ones(len(left)), np.zeros(len(left))
        for above in self.above[:, :-1].T:
            there = ~np.isnan(above)
            drawn = np.where(there, np.minimum(1.0, (n - 1) / np.maximum(left, 1)), 0.0)
            rows = undrawn * drawn > NEGLIGIBLE
            chance[rows] += (undrawn * drawn)[rows] * at_most(k - 1, left[rows] - 1, above[rows], n - 2)
            undrawn *= 1 - drawn
            left -= there
        return chance + undrawn * at_most(k - 1, left, self.above[:, -1], n - 1)

    def mean_count(self, n: int, gallery: np.ndarray) -> float:
        """Relevant items of a query in a random gallery of n, on average."""
        return float((1 + (self.relevant - 1) * (n - 1) / (gallery - 1)).mean())


def at_most(k: int, items: np.ndarray, marked: np.ndarray, draws: int) -> np.ndarray:
    """P(at most k marked ones among so many draws from `items`); between whole numbers of marked ones, linear."""
    items = np.maximum(items, 0)
    cases, inverse = np.unique(np.stack([items, marked]), axis=1, return_inverse=True)  # many queries are alike
    items, marked = cases
    low = np.floor(marked)
    share = marked - low
    taken = np.clip(draws, 0, items)
    some = np.maximum(items, 1)  # SciPy has no answer for none, of which none is drawn
    at = [hypergeom.cdf(k, some, np.minimum(low + step, items), taken) for step in (0, 1)]
    return ((1 - share) * at[0] + share * at[1])[inverse.reshape(-1)]


def own_scores(scores: Tensor, relevant: Tensor, own: Tensor) -> OwnScores:
    """From scores (q, g), which items are relevant to each query (q, g), and the place of its own row (q,)."""
    lowest = -torch.inf
    mine = scores.gather(1, own[:, None])
    best = scores.masked_fill(~relevant, lowest).topk(min(BEFORE, scores.shape[1]), dim=1).values
    best = best.masked_fill(best <= mine, lowest)  # the own row is always there, so that later ones do not matter
    others = scores.masked_fill(relevant, lowest).sort(dim=1).values
    levels = torch.cat([best, mine], dim=1)  # (q, J)
    above = scores.shape[1] - torch.searchsorted(others, levels, right=True)
    tied = scores.shape[1] - torch.searchsorted(others, levels) - above
    same = levels[:, :, None] == levels[:, None, :]  # (q, J, J)
    place, alike = same.tril().sum(2), same.sum(2)
    place[:, -1], alike[:, -1] = 1, (relevant & (scores == mine)).sum(1)
    before = above + tied * place / (alike + 1)
    before[:, :-1][best == lowest] = torch.nan
    used = torch.cat([(best > lowest).any(0), torch.ones(1, dtype=torch.bool, device=best.device)])
    first = relevant.int().argmax(1)  # the same for queries with the same relevant items
    return OwnScores(before[:, used].double().cpu().numpy(), relevant.sum(1).cpu().numpy(), first.cpu().numpy())
