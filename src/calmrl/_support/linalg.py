"""Linear algebra that several packages share: running moments, principal directions, and singular values of a few vectors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import lapack
from torch import Tensor

from calmrl.arrays import full_precision, maybe_any


def add_rows(block: Tensor, count: Tensor, mean: Tensor, square: Tensor) -> None:
    """Take the rows of `block` (n, d) into count (), mean (d,) and sum of squared deviations (d,), in place.

    Chan's update: with gap = mean(block) - mean and N = count + n,
        square += sum (block - mean(block))^2 + gap^2 count n / N,    mean += gap n / N,    count = N.
    """
    if len(block):
        centre = block.mean(0)
        number = count.new_tensor(float(len(block)))
        add_summary(number, centre, (block - centre).square().sum(0), count, mean, square)


def add_entries(block: Tensor, count: Tensor, mean: Tensor, square: Tensor) -> None:
    """As `add_rows`, for rows with NaN in single entries: every column has a count of its own, (d,)."""
    if len(block):
        seen = ~torch.isnan(block)
        number = seen.sum(0).to(count.dtype)
        centre = torch.where(seen, block, 0.0).sum(0) / number.clamp(min=1)
        spread = torch.where(seen, block - centre, 0.0).square().sum(0)
        add_summary(number, centre, spread, count, mean, square)


def add_summary(n: Tensor, centre: Tensor, spread: Tensor, count: Tensor, mean: Tensor, square: Tensor) -> None:
    """As `add_rows`, for n rows of which mean and sum of squared deviations are known; counts may be per column."""
    if not bool((n > 0).any()):
        return
    total = count + n
    some = total.clamp(min=1)
    gap = centre - mean
    square += spread + gap**2 * (count * n / some)
    mean += gap * (n / some)
    count.copy_(total)


def numpy_eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """As `torch.linalg.eigh`; on the CPU by NumPy, whose LAPACK needs two thirds of the time on some processors."""
    if matrix.device.type != "cpu":
        return torch.linalg.eigh(matrix)
    values, vectors = np.linalg.eigh(matrix.numpy())
    return torch.from_numpy(values), torch.from_numpy(vectors)


def principal_directions(
    covariance: Tensor, most: int, smallest: float, eigh: Callable[[Tensor], tuple[Tensor, Tensor]] = numpy_eigh
) -> tuple[Tensor, Tensor]:
    """(all variances (d,), leading directions (d, r)) of a symmetric matrix, largest first; 1 <= r <= `most`.

    Directions with no more than a share `smallest` of the largest variance are rounding, and not among the r. Signs and last
    digits are those of the solver `eigh`; a fit that starts at random depends on them.
    """
    variance, directions = eigh(covariance)
    variance, directions = variance.flip(0).clamp(min=0), directions.flip(1)
    r = max(1, min(most, int((variance > smallest * variance[0]).sum())))
    return variance, directions[:, :r].contiguous()


LARGE = 96  # columns, from which on SciPy's LAPACK inverts in half the time of torch
STRIP = 64  # columns that are copied at once, few enough for the cache
BELOW = np.tri(STRIP, dtype=bool)


def inverse_of(matrices: Tensor) -> tuple[Tensor, Tensor] | None:
    """(inverse, log determinant) of symmetric positive definite matrices (..., n, n); None where one has no Cholesky factor."""
    n = matrices.shape[-1]
    here = matrices.device.type == "cpu" and matrices.dtype == torch.float64 and not matrices.requires_grad
    if n < LARGE or not here:
        chol, bad = torch.linalg.cholesky_ex(matrices)
        if maybe_any(bad):
            return None
        return torch.cholesky_inverse(chol), 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    out, logdet = (
        torch.empty_like(matrices, memory_format=torch.contiguous_format),
        matrices.new_empty(matrices.shape[:-2]),
    )
    for values, total, matrix in zip(out.view(-1, n, n), logdet.view(-1), matrices.reshape(-1, n, n), strict=True):
        factor, bad = lapack.dpotrf(matrix.numpy().T, clean=0)
        if bad:
            return None
        total.fill_(2 * float(np.log(factor.diagonal()).sum()))
        lower = lapack.dpotri(factor, overwrite_c=1)[0].T
        for start in range(0, n, STRIP):
            strip = slice(start, start + STRIP)
            lower[:start, strip], corner = lower[strip, :start].T, lower[strip, strip]
            corner[...] = np.where(BELOW[: len(corner), : len(corner)], corner, corner.T)
        values.copy_(torch.from_numpy(lower))
    return out, logdet


TIE = 1e-4  # by how much more the first modality counts than the last when a side is chosen
GAP_DAMPING = 1e-5  # delta, as a fraction of the largest squared singular value


class Spectrum(NamedTuple):
    sigma: Tensor  # (N, k), descending (but see `agree`)
    v: Tensor  # (N, k, k), right vectors (weights of the modalities) in columns
    u: Tensor  # (N, d), unit length; zero for a row of zeros


def spectrum(z: Tensor, agree: Tensor | None = None) -> Spectrum:
    """Singular values, right vectors and leading left vector of every `z[i]` (k x d); missing modalities are zero rows.

    For Z with rows z^1 ... z^k: Z Z^T = V diag(sigma^2) V^T, u = Z^T v_1 / sigma_1. The width d never enters a
    factorisation.

    The sign of the leading pair is fixed toward the modalities: u . sum_m z^m >= 0, which is sum_m v_m >= 0. Where that
    sum vanishes (unit vectors that point apart: v is (1, -1) / sqrt(2)), the earlier modality decides.

    Where `agree` (N, bool) is set, for rows of exactly two vectors, the first place is taken by the direction in which
    the two agree (v of equal signs), also when they point apart and the other direction is the larger: singular values
    alone cannot tell z from -z.
    """
    return Spectrum(*_Spectrum.apply(z, agree))


class _Spectrum(torch.autograd.Function):
    """Saves only its input and outputs, and its backward is differentiable: higher derivatives come from autograd.

    The derivative is written out by hand because that of `svd` and `eigh` is NaN for equal singular values:

        dL/dZ = V S V^T Z + v_1 g_u^T / sigma_1,
        S_jj  = g_sigma_j / sigma_j - [j = 1] a_1 / sigma_1^3,
        S_1j  = S_j1 = a_j / (sigma_1 (sigma_1^2 - sigma_j^2)),      a = V^T Z g_u,

    with two changes that only act where the derivative does not exist: 1 / gap becomes gap / (gap^2 + delta^2), and 1 /
    sigma becomes 0 for singular values that are zero up to rounding.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, agree: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
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
        ctx: Any, g_sigma: Tensor | None, g_v: Tensor | None, g_u: Tensor | None
    ) -> tuple[Tensor | None, None]:
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


def _side(v: Tensor) -> Tensor:
    """(N, 1) the sign that turns v (N, k) toward the modalities."""
    weights = torch.linspace(1 + TIE, 1, v.shape[1], dtype=v.dtype, device=v.device)
    total = (v @ weights)[:, None]
    return torch.copysign(torch.ones_like(total), total)


def _top(sigma: Tensor) -> Tensor:
    """(N, 1) the largest squared singular value: the unit for what counts as zero. Vectors shorter than eps are zero."""
    return (sigma.detach() ** 2).amax(1, keepdim=True).clamp(min=torch.finfo(sigma.dtype).eps ** 2)


def _inverse(sigma: Tensor) -> Tensor:
    """1 / sigma, falling to 0 where sigma is zero up to the rounding of the Gram matrix."""
    return sigma / torch.maximum(sigma * sigma, 10 * torch.finfo(sigma.dtype).eps * _top(sigma))


def _damped(gap: Tensor) -> Tensor:
    """1 / gap, but 0 for no gap and never more than 1 / (2 delta)."""
    return gap / (gap * gap + GAP_DAMPING**2)
