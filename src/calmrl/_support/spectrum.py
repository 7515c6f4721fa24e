"""Singular values and the leading left singular vector of a few stacked vectors, from their k x k Gram matrix.

For Z with rows z^1 ... z^k (k x d): Z Z^T = V diag(sigma^2) V^T, u = Z^T v_1 / sigma_1. The width d never enters a
factorisation. The derivative is written out by hand because that of `svd` and `eigh` is NaN for equal singular values:

    dL/dZ = V S V^T Z + v_1 g_u^T / sigma_1,
    S_jj  = g_sigma_j / sigma_j - [j = 1] a_1 / sigma_1^3,
    S_1j  = S_j1 = a_j / (sigma_1 (sigma_1^2 - sigma_j^2)),      a = V^T Z g_u,

with two changes that only act where the derivative does not exist: 1 / gap becomes gap / (gap^2 + delta^2), and 1 /
sigma becomes 0 for singular values that are zero up to rounding.
"""

from typing import Any, NamedTuple

import torch

from calmrl.arrays import full_precision, maybe_any

TIE = 1e-4  # by how much more the first modality counts than the last when a side is chosen
GAP_DAMPING = 1e-5  # delta, as a fraction of the largest squared singular value


class Spectrum(NamedTuple):
    sigma: torch.Tensor  # (N, k), descending (but see `agree`)
    v: torch.Tensor  # (N, k, k), right vectors (weights of the modalities) in columns
    u: torch.Tensor  # (N, d), unit length; zero for a row of zeros


def spectrum(z: torch.Tensor, agree: torch.Tensor | None = None) -> Spectrum:
    """Singular values, right vectors and leading left vector of every `z[i]` (k x d); missing modalities are zero rows.

    The sign of the leading pair is fixed toward the modalities: u . sum_m z^m >= 0, which is sum_m v_m >= 0. Where that
    sum vanishes (unit vectors that point apart: v is (1, -1) / sqrt(2)), the earlier modality decides.

    Where `agree` (N, bool) is set, for rows of exactly two vectors, the first place is taken by the direction in which
    the two agree (v of equal signs), also when they point apart and the other direction is the larger: singular values
    alone cannot tell z from -z.
    """
    return Spectrum(*_Spectrum.apply(z, agree))


class _Spectrum(torch.autograd.Function):
    """Saves only its input and outputs, and its backward is differentiable: higher derivatives come from autograd."""

    @staticmethod
    def forward(
        ctx: Any, z: torch.Tensor, agree: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with full_precision(z):
            gram = z @ z.mT  # (N, k, k)
            values, v = torch.linalg.eigh(gram)
            values, v = values.flip(-1), v.flip(-1)
            if agree is not None:
                apart = agree & (gram.sum((1, 2)) < gram.diagonal(dim1=1, dim2=2).sum(1))
                if maybe_any(apart):
                    for part in (values[:, None, :2], v[:, :, :2]):
                        part.copy_(torch.where(apart[:, None, None], part.flip(2), part))
            sigma = values.clamp_(min=0).sqrt()
            v[:, :, 0] *= _side(v[:, :, 0])
            u = ((v[:, :, :1] * _inverse(sigma)[:, None, :1]).mT @ z).squeeze(1)
        ctx.save_for_backward(z, sigma, v)
        ctx.set_materialize_grads(False)
        return sigma, v, u

    @staticmethod
    def backward(
        ctx: Any, g_sigma: torch.Tensor | None, g_v: torch.Tensor | None, g_u: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, None]:
        if g_sigma is None and g_v is None and g_u is None:
            return None, None
        z, sigma, v = ctx.saved_tensors
        with full_precision(z):
            inverse = _inverse(sigma)
            s = torch.diag_embed(torch.zeros_like(sigma) if g_sigma is None else g_sigma * inverse)  # (N, k, k)
            lam, top = sigma * sigma, _top(sigma)
            if g_u is not None:
                first = inverse[:, :1]
                a = (g_u[:, None, :] @ z.mT @ v).squeeze(1)  # (N, k)
                edge = a * first * _damped((lam[:, :1] - lam) / top) / top  # its first entry is 0
                s[:, 0, :] += edge
                s[:, :, 0] += edge
                s[:, :1, 0] -= a[:, :1] * first**3
            if g_v is not None:
                top = top[:, :, None]
                twist = (v.mT @ g_v) * _damped((lam[:, None, :] - lam[:, :, None]) / top) / top
                s = s + twist + twist.mT
            m = v @ s @ v.mT
            if g_u is None:
                return m @ z, None
            return (m @ z).addcmul_(v[:, :, :1] * inverse[:, None, :1], g_u[:, None, :]), None


def _side(v: torch.Tensor) -> torch.Tensor:
    """(N, 1) the sign that turns v (N, k) toward the modalities."""
    weights = torch.linspace(1 + TIE, 1, v.shape[1], dtype=v.dtype, device=v.device)
    total = (v @ weights)[:, None]
    return torch.copysign(torch.ones_like(total), total)


def _top(sigma: torch.Tensor) -> torch.Tensor:
    """(N, 1) the largest squared singular value: the unit for what counts as zero. Vectors shorter than eps are zero."""
    return (sigma.detach() ** 2).amax(1, keepdim=True).clamp(min=torch.finfo(sigma.dtype).eps ** 2)


def _inverse(sigma: torch.Tensor) -> torch.Tensor:
    """1 / sigma, falling to 0 where sigma is zero up to the rounding of the Gram matrix."""
    return sigma / torch.maximum(sigma * sigma, 10 * torch.finfo(sigma.dtype).eps * _top(sigma))


def _damped(gap: torch.Tensor) -> torch.Tensor:
    """1 / gap, but 0 for no gap and never more than 1 / (2 delta)."""
    return gap / (gap * gap + GAP_DAMPING**2)
