"""Hubs: items that are near to everything crowd out the right ones. Taking off how near an item is to all helps.

Cross-domain similarity local scaling (CSLS): with r(g) the mean score of g with its k nearest queries, and r(q) the mean
score of q with its k nearest gallery items, the score of a pair becomes

    2 s(q, g) - r(q) - r(g).

The result depends on all queries together, so it is an option that is asked for and named in what is reported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl.convention import Array, blocks_of_rows, to_tensor
from calmrl.errors import InputError
from calmrl.metrics.own_items import Own
from calmrl.metrics.products import Side
from calmrl.metrics.ranks import BLOCK_BYTES, Ranks, ranks_of_scores

HUBS = ("csls",)
DECIMALS = 12  # corrected scores that agree to so many decimals tie


def check_hubs(hubs: Any, k: Any) -> None:
    """None or the name of a correction, and how many neighbours it looks at."""
    if hubs is not None and hubs not in HUBS:
        raise InputError(f"hubs must be None or 'csls'; got {hubs!r}")
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InputError(f"the number of neighbours that hubs='csls' looks at is a whole number from 1 on; got {k!r}")


def csls(scores: Array, k: int = 10) -> Array:
    """2 s(q, g) - r(q) - r(g) for a matrix of scores (Q, G); NumPy in, NumPy out, torch in, torch out."""
    table = to_tensor(scores)
    corrected = 2 * table - nearness(table, k)[:, None] - nearness(table.T, k)
    return corrected if isinstance(scores, Tensor) else corrected.numpy()


def nearness(scores: Tensor, k: int) -> Tensor:
    """The mean of the k largest scores in each row (of all, if there are fewer)."""
    return scores.topk(min(k, scores.shape[1]), dim=1).values.mean(1)


def ranks_without_hubs(queries: Side, gallery: Side, own: Own, k: int) -> Ranks:
    """Ranks by corrected inner products, in float64, never more than a block of scores in memory.

    r(q) is the same for all items that a query ranks, so it is left out.
    """
    left = queries.rows(slice(None), torch.float64)
    step = max(1, BLOCK_BYTES // (8 * max(len(queries), len(gallery))))
    near = torch.cat(
        [
            nearness(gallery.rows(slice(start, stop), torch.float64) @ left.T, k)
            for start, stop in blocks_of_rows(len(gallery), 1, step)
        ]
    )
    right = gallery.rows(slice(None), torch.float64)

    def block(start: int, stop: int) -> Tensor:
        return torch.round(2 * (left[start:stop] @ right.T) - near, decimals=DECIMALS)

    return ranks_of_scores(block, len(left), own, step)
