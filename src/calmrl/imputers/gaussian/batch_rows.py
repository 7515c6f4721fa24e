"""A batch as one matrix: the posterior of all rows in a handful of products, whatever they lack; for a single component.

Sorting rows by pattern (`pattern_groups`) pays for many rows. In a training step the number of operations counts: here
missing values are zeros, and rows differ only in the covariance V that each of them is multiplied with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calmrl.imputers.gaussian.posterior import Expectation

PADDED = 1024  # rows, and four times those of the batch: so many may be multiplied to have one product for all patterns


class Gaps:
    """Which rows of a batch lack which modality.

    Columns of a batch (N, D) are taken in blocks: all modalities in one block (N k, d) if they have the same width,
    each in its own (N, d_m) otherwise.
    """

    def __init__(self, mask: np.ndarray, widths: Sequence[int], device: torch.device) -> None:
        n, k = mask.shape
        self.widths = list(widths)
        self.one_block = len(set(widths)) == 1
        modality, row = np.divmod(np.flatnonzero(~mask.T), max(n, 1))
        self.counts = np.bincount(modality, minlength=k).tolist()  # [m]: rows that lack m
        self.rows = torch.from_numpy(row).to(device)  # (M,) their numbers, modality by modality
        within = [torch.from_numpy(row * k + modality).to(device)] if self.one_block else self.rows.split(self.counts)
        self.within: Sequence[Tensor] = within  # the same in each block

    def blocks(self, whole: Tensor) -> Sequence[Tensor]:
        """Views of the columns of a batch."""
        if self.one_block:
            return [whole.view(-1, self.widths[0])]
        starts = [sum(self.widths[:m]) for m in range(len(self.widths))]
        return [whole.narrow(1, start, width) for start, width in zip(starts, self.widths, strict=True)]

    def joined(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """What belongs to the missing rows of each modality, per block."""
        return [torch.cat(list(parts))] if self.one_block else parts

    def blank(self, whole: Tensor) -> None:
        """In place: zero where missing."""
        for block, rows in zip(self.blocks(whole), self.within, strict=True):
            block.index_fill_(0, rows, 0.0)


class BatchPosterior:
    """Posterior means of a batch, and the V of each of its rows.

    `x` is large and serves whoever comes next: `Recent.add` leaves squares in it, `completed` takes it away.
    """

    def __init__(self, expect: Expectation, z: Sequence[Tensor | None], present: Tensor) -> None:
        """Values of missing rows are never used; `None` stands for a modality that no row has."""
        self.expect = expect
        mask = present.cpu().numpy()
        self.gaps = Gaps(mask, expect.params.widths, present.device)
        given = [
            present.new_zeros((len(present), width), dtype=expect.dtype) if values is None else values
            for values, width in zip(z, expect.params.widths, strict=True)
        ]
        self.x = side_by_side(given, expect.dtype).sub_(expect.middle)  # (N, D) z - mu, zero where missing
        self.gaps.blank(self.x)
        self.patterns, slots = distinct_rows(mask)
        self.counts = np.bincount(slots, minlength=len(self.patterns))  # (P,) rows of each pattern
        self.V, self.logdet = expect.maps(torch.from_numpy(self.patterns).to(present.device))  # (P, L, L), (P,)
        self._order_rows(slots, present.device)
        self.means = self.times_V(self.x @ expect.side_by_side)  # (N, L)

    def _order_rows(self, slots: np.ndarray, device: torch.device) -> None:
        """Where rows go so that those of one pattern stand together, and back."""
        order = np.argsort(slots, kind="stable")
        widest = int(self.counts.max(initial=0))
        self.padded = widest * len(self.counts) <= PADDED + 4 * len(slots)
        if self.padded:  # (P, widest), where any row fills what is left
            place = np.empty_like(order)
            starts = np.cumsum(self.counts) - self.counts
            place[order] = np.arange(len(order)) + (slots * widest - starts[slots])[order]
            filled = np.zeros(widest * len(self.counts), dtype=np.int64)
            filled[place] = np.arange(len(order))
            order = filled
        else:
            place = np.argsort(order)
        self.order, self.place = (torch.from_numpy(numbers).to(device) for numbers in (order, place))

    def times_V(self, b: Tensor) -> Tensor:
        """V_i b_i of every row, (N, L); differentiable in `b`."""
        if not len(b):
            return b
        in_order, V = b.index_select(0, self.order), self.V
        if self.padded:
            done = torch.bmm(in_order.view(len(V), -1, b.shape[1]), V).flatten(0, 1)
        else:
            done = torch.cat([rows @ own for rows, own in zip(in_order.split(self.counts.tolist()), V, strict=True)])
        return done.index_select(0, self.place)


def distinct_rows(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P, k) patterns in an order that depends on nothing else, and which of them each row of the mask has (N,)."""
    k, raw = mask.shape[1], mask.tobytes()
    keys = [raw[start : start + k] for start in range(0, len(raw), k)]
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    patterns = np.frombuffer(b"".join(places), dtype=bool).reshape(-1, k)
    return patterns.copy(), np.array([places[key] for key in keys], dtype=np.int64)


def side_by_side(blocks: Sequence[Tensor], dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """(N, D), in `out` if it is given."""
    return torch.cat([block.to(dtype) for block in blocks], dim=1, out=out)
