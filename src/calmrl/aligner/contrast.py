"""The contrastive loss of refinement as a gradient in closed form: several times cheaper than to record and replay it.

With unit heads u^a = h^a / |h^a|, scores s_ij = u_i^a . u_j^b / T over the rows i that have a and j that have b, and rows
that have both as terms, the loss is the mean over all terms of all pairs of

    1/2 [log sum_j exp(s_ij) + log sum_j exp(s_ji)] - s_ii.

Scores are cosines, so exp(s - 1/T) lies between exp(-2/T) and 1 and no maximum has to be subtracted.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

TEMPERATURE = 0.1


def head_gradients(heads: list[Tensor], present: Tensor) -> list[Tensor]:
    """The derivative of the loss by every head, (n_m, L) each; `heads[m]` holds the rows that have m, in their order."""
    length = [h.norm(dim=1, keepdim=True).clamp(min=1e-12) for h in heads]
    unit = [h / size for h, size in zip(heads, length, strict=True)]
    slope = [torch.zeros_like(u) for u in unit]
    number = present.long().cumsum(0) - 1
    terms = 0
    for a, b in combinations(range(len(heads)), 2):
        both = (present[:, a] & present[:, b]).nonzero()[:, 0]
        if not len(both):
            continue
        terms += len(both)
        by_score = _score_gradient(unit[a] @ unit[b].T, number[both, a], number[both, b])
        slope[a].addmm_(by_score, unit[b])
        slope[b].addmm_(by_score.T, unit[a])
    share = 1 / (TEMPERATURE * max(1, terms))
    return [  # only the part across the head changes its direction
        share * (d - u * (u * d).sum(1, keepdim=True)) / size for d, u, size in zip(slope, unit, length, strict=True)
    ]


def _score_gradient(cosines: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The derivative of the sum of terms by every score; term t stands in row `rows[t]` and column `columns[t]`."""
    weight = cosines.sub_(1).div_(TEMPERATURE).exp_()
    by_row, by_column = weight.new_zeros(len(weight)), weight.new_zeros(weight.shape[1])
    by_row[rows] = 0.5 / weight.sum(1)[rows]
    by_column[columns] = 0.5 / weight.sum(0)[columns]
    gradient = weight.mul_(by_row[:, None] + by_column)
    gradient[rows, columns] -= 1
    return gradient
