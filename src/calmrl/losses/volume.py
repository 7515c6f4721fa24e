"""Volumes of parallelotopes from inner products, without factorisations."""

from typing import Any

import torch
from torch import Tensor


def adjugate(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(adj, det) of a stack of small square matrices, by the Faddeev-LeVerrier recurrence.

    Polynomials of the entries: nothing is inverted, so singular matrices are no special case, in value or gradient.
    Computed in float64 (the matrices are tiny) and returned in the dtype given.
    """
    b = matrix.double()
    n = b.shape[-1]
    eye = torch.eye(n, dtype=b.dtype, device=b.device)
    m = eye.expand_as(b)
    for step in range(1, n + 1):
        product = b @ m
        c = -product.diagonal(dim1=-2, dim2=-1).sum(-1) / step
        if step < n:
            m = product + c[..., None, None] * eye
    sign = 1.0 if n % 2 else -1.0
    return (sign * m).to(matrix.dtype), (-sign * c).to(matrix.dtype)


def root(x: Tensor) -> Tensor:
    """sqrt(max(x, 0)) with a derivative that stays finite: 1 / (2 sqrt(x)) becomes sqrt(x) / (2 (x + delta)).

    delta is ten times the rounding unit, so only what is zero up to rounding is changed; there the derivative is 0.
    """
    return _Root.apply(x)


class _Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clamp(min=0).sqrt_()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * (0.5 * y) / (y * y + 10 * torch.finfo(y.dtype).eps)


def quadratic_forms(inner: Tensor, weights: Tensor) -> Tensor:
    """(c, N) values q_ij = l_ij^T A_j l_ij for l in `inner` (c, p, N) and symmetric A in `weights` (N, p, p)."""
    return _QuadraticForms.apply(inner, weights)


class _QuadraticForms(torch.autograd.Function):
    """Autograd would keep p^2 products of size c x N; this keeps `inner` only."""

    @staticmethod
    def forward(ctx: Any, inner: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(inner, weights)
        value = torch.zeros_like(inner[:, 0])
        for a in range(inner.shape[1]):
            half = inner[:, a] * weights[:, a, a]  # what lies right of the diagonal counts twice
            for b in range(a + 1, inner.shape[1]):
                half.addcmul_(inner[:, b], weights[:, a, b], value=2)
            value.addcmul_(inner[:, a], half)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inner, weights = ctx.saved_tensors
        p = inner.shape[1]
        scaled = inner * (2 * gradient[:, None])  # (c, p, N)
        to_inner = torch.zeros_like(inner)
        for a in range(p):
            for b in range(p):
                to_inner[:, a].addcmul_(scaled[:, b], weights[:, a, b])
        rows = [[(scaled[:, a] * inner[:, b]).sum(0) for b in range(a + 1)] for a in range(p)]
        full = [[rows[max(a, b)][min(a, b)] for b in range(p)] for a in range(p)]
        return to_inner, torch.stack([torch.stack(row, dim=1) for row in full], dim=1) / 2
