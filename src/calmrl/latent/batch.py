"""One batch of a training step as one matrix: its posterior means, the batch completed by them, and the gradient through that.

The rows stay in their order and side by side, (N, D), because a step is short and sorting them by pattern would cost as much as
the mathematics. For a single component.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl.latent.model import Expectation
from calmrl.latent.rows import distinct_rows

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


def side_by_side(blocks: Sequence[Tensor], dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """(N, D), in `out` if it is given."""
    return torch.cat([block.to(dtype) for block in blocks], dim=1, out=out)


def completed(z: Sequence[Tensor], posterior: BatchPosterior, unit: bool) -> Tensor:
    """(N, D) in the dtype of the posterior, which is that of `z`: `z` side by side, predictive means in missing blocks.

    `unit` scales imputed vectors to length one. Differentiable in `z`, also through what is imputed. Takes over the
    memory of `posterior.x`.
    """
    return _Completion.apply(posterior, unit, *z)[0]


def imputed(posterior: BatchPosterior, unit: bool) -> tuple[Sequence[Tensor], list[Tensor]]:
    """(imputed vectors, what they were divided by) of the missing rows of each block; constants."""
    expect, gaps = posterior.expect, posterior.gaps
    means = posterior.means.index_select(0, gaps.rows).split(gaps.counts)
    parts = zip(means, expect.loadings, expect.centre, strict=True)
    vectors = gaps.joined([torch.addmm(mu[0], mean, W[0].T) for mean, W, mu in parts])
    if not unit:
        return vectors, []
    shortest = torch.finfo(expect.dtype).tiny ** 0.5
    lengths = [torch.linalg.vector_norm(y, dim=1, keepdim=True).clamp_(min=shortest) for y in vectors]
    return [y.div_(length) for y, length in zip(vectors, lengths, strict=True)], lengths


class _Completion(torch.autograd.Function):
    """(completed batch, lengths of the imputed vectors). Saves nothing but its outputs, and its backward is differentiable."""

    @staticmethod
    def forward(ctx: Any, posterior: BatchPosterior, unit: bool, *z: Tensor) -> tuple[Tensor, ...]:
        whole = side_by_side(z, posterior.expect.dtype, out=posterior.x)
        del posterior.x  # or output, node and posterior would hold each other until the next garbage collection
        vectors, lengths = imputed(posterior, unit)
        gaps = posterior.gaps
        for block, rows, y in zip(gaps.blocks(whole), gaps.within, vectors, strict=True):
            block.index_copy_(0, rows, y)
        ctx.posterior, ctx.dtypes = posterior, [tensor.dtype for tensor in z]
        ctx.save_for_backward(whole, *lengths)
        ctx.set_materialize_grads(False)
        return whole, *lengths

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *g_lengths: Tensor | None) -> tuple[Tensor | None, ...]:
        posterior: BatchPosterior = ctx.posterior
        expect, gaps = posterior.expect, posterior.gaps
        whole, *lengths = ctx.saved_tensors
        g = torch.zeros_like(whole) if g is None else g.contiguous()
        of_y = [block.index_select(0, rows) for block, rows in zip(gaps.blocks(g), gaps.within, strict=True)]
        for j, (length, g_length) in enumerate(zip(lengths, g_lengths, strict=True)):
            u = gaps.blocks(whole)[j].index_select(0, gaps.within[j])
            along = (u * of_y[j]).sum(1, keepdim=True)
            of_y[j] = torch.addcmul(of_y[j], u, along, value=-1) / length
            if g_length is not None:
                of_y[j] = of_y[j] + u * g_length
        parts = of_y[0].split(gaps.counts) if gaps.one_block else of_y
        of_mean = torch.cat([part @ W[0] for part, W in zip(parts, expect.loadings, strict=True)])  # (M, L)
        of_means = torch.zeros_like(posterior.means).index_add(0, gaps.rows, of_mean)
        g = torch.addmm(g, posterior.times_V(of_means), expect.side_by_side.T)
        gaps.blank(g)
        of_z = zip(g.split(gaps.widths, dim=1), ctx.dtypes, strict=True)
        return None, None, *(part.to(dtype) for part, dtype in of_z)
