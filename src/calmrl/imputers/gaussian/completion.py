"""A batch completed: observed values as they are, imputed ones where they are missing, with a derivative of its own.

With b_i = sum_m W^mT Psi_m^-1 (z_i^m - mu^m) over what row i has, a missing block is y = W^m V_i b_i + mu^m, or u = y / |y|.
Given the gradient g of the completed batch, that of the observed blocks is
    g_i + Psi^-1 W V_i sum_{m missing} W^mT J_i^m g_i^m,      J = 1, or (1 - u u^T) / |y|.
Plain autograd gives the same from some ten times as many operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from calmrl.imputers.gaussian.batch_rows import BatchPosterior, side_by_side


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
