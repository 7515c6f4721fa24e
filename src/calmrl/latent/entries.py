"""Rows with holes inside a modality: the posterior of the latents from the single entries that a row has.

With diagonal noise every entry speaks for itself. With o_i the observed entries of row i and W_j a row of the loadings,
    V_i = (I + sum over j in o_i of W_j W_j^T / psi_j)^-1,    m_i = V_i sum over j in o_i of W_j (z_ij - mu_j) / psi_j.
All V_i^-1 of a chunk are one product of the observed entries (P, D) with the table of W_j W_j^T / psi_j; rows that have the
same entries share one factorisation. Symmetric matrices are kept as their upper triangle, T = L (L + 1) / 2 numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calmrl.errors import InputError
from calmrl.latent.model import Parameters, Posterior, inverse
from calmrl.latent.rows import Torn

CHUNK_BYTES = 1 << 25  # rows are taken in chunks whose factors have about this size


@dataclass(frozen=True)
class EntryPosterior(Posterior):
    """Posterior of rows that differ in what they have: the covariance is (n, K, L, L)."""

    rows: Tensor  # (n,) original index of each row
    present: Tensor  # (n, k) bool
    x: Tensor  # (n, D) values, zero where not observed
    patterns: Tensor  # (P, D) bool: observed entries
    slots: Tensor  # (n,) the pattern of each row
    distance: Tensor  # (n, K) sum over the observed entries of (z_j - mu_j)^2 / psi_j


@dataclass(frozen=True)
class EntryTable:
    """What single entries say about the latents; columns of all modalities side by side."""

    mu: Tensor  # (K, D)
    precision: Tensor  # (K, D) 1 / psi
    weighted: Tensor  # (K, D, L) W / psi
    outer: Tensor  # (K, D, T) upper triangle of W_j W_j^T / psi_j
    constant: Tensor  # (K, D) log psi + log 2 pi

    @staticmethod
    def of(params: Parameters) -> EntryTable:
        """The one that these parameters keep."""
        if "entries" not in params.derived:
            params.derived["entries"] = _table(params)
        kept: EntryTable = params.derived["entries"]
        return kept


def _table(params: Parameters) -> EntryTable:
    if params.rotations is not None:
        raise InputError(
            "rows with holes inside a modality need a model of the features as they are, but this one is whitened; fit with "
            "whitening=0, or on rows with holes"
        )
    W, mu, noise = torch.cat(params.W, dim=1), torch.cat(params.mu, dim=1), torch.cat(params.noise, dim=1)
    weighted = W / noise[..., None]
    i, j = triangle(params.latent_dim, W.device)
    return EntryTable(mu, 1 / noise, weighted, W[..., i] * weighted[..., j], noise.log() + math.log(2 * math.pi))


def triangle(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column numbers of the upper triangle of a matrix."""
    i, j = torch.triu_indices(size, size, device=device)
    return i, j


def symmetric(flat: Tensor, size: int) -> Tensor:
    """(..., size, size) from upper triangles (..., T)."""
    i, j = triangle(size, flat.device)
    at = torch.empty((size, size), dtype=torch.long, device=flat.device)
    at[i, j] = at[j, i] = torch.arange(len(i), device=flat.device)
    return flat[..., at]


def entry_posteriors(params: Parameters, torn: Torn | None) -> Iterator[EntryPosterior]:
    """The posterior of rows with holes, in chunks of bounded size; differentiable in the values."""
    if torn is None:
        return
    table = EntryTable.of(params)
    K, L, D = params.n_components, params.latent_dim, torn.x.shape[1]
    step = max(1, CHUNK_BYTES // (8 * K * (3 * L * L + D)))
    for start in range(0, len(torn.x), step):
        part = slice(start, start + step)
        first, last = int(torn.slots[part][0]), int(torn.slots[part][-1])
        patterns, slots = torn.patterns[first : last + 1], torn.slots[part] - first
        held = patterns.double()  # (P, D)
        precision = symmetric((held @ table.outer).transpose(0, 1), L)  # (P, K, L, L)
        V, logdet = inverse(precision + torch.eye(L, dtype=held.dtype, device=held.device))
        x = torn.x[part]
        gap = torch.where(patterns[slots][:, None], x[:, None] - table.mu, 0.0)  # (n, K, D)
        b = (gap.transpose(0, 1) @ table.weighted).transpose(0, 1)  # (n, K, L)
        V = V[slots]
        mean = (V * b[..., None, :]).sum(-1)
        quadratic = (b * mean).sum(-1)
        distance = (gap.square() * table.precision).sum(-1)
        constant = (held @ table.constant.T + logdet)[slots]
        log_joint = params.log_weight - 0.5 * (constant + distance - quadratic)
        yield EntryPosterior(
            mean, V, log_joint, quadratic, torn.order[part], torn.present[part], x, patterns, slots, distance
        )
