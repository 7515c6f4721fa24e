"""The E-step: posterior of the latents given whatever modalities a row has, one factorisation per pattern.

For component c and pattern Omega
    V = (I + sum_{m in Omega} W^mT Psi_m^-1 W^m)^-1,    m_i = V sum_{m in Omega} W^mT Psi_m^-1 (z_i^m - mu^m),
and by Woodbury and the matrix determinant lemma
    log p(z_i) = -1/2 [ sum_m (d_m log 2 pi + log|Psi_m| + |z_i^m - mu^m|^2_{Psi_m^-1}) + log|V^-1| - m_i^T V^-1 m_i ].
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calmrl.latent.parameters import Parameters
from calmrl.latent.patterns import Pack

FACTOR_BYTES = 1 << 26  # patterns are factorised in groups of about this size, so that many patterns cost no memory


@dataclass(frozen=True)
class Posterior:
    """Posterior of rows that share one pattern."""

    mean: Tensor  # (n, K, L)
    covariance: Tensor  # (K, L, L)
    log_joint: Tensor  # (n, K) log of weight_c * p(z_i | c)
    quadratic: Tensor  # (n, K) m_i^T V^-1 m_i


class Expectation:
    """Everything the E-step needs of the parameters, computed once, in the dtype of the data."""

    def __init__(self, params: Parameters, dtype: torch.dtype) -> None:
        K, L = params.n_components, params.latent_dim
        self.params, self.dtype = params, dtype
        self.information = params.information  # (K, L, L) each
        self.scaled, self.offset = [], []
        self.mean_scaled, self.precision, self.constant = [], [], []
        for weighted, mu, noise in zip(params.weighted, params.mu, params.noise, strict=True):
            self.scaled.append(weighted.permute(1, 0, 2).reshape(-1, K * L).to(dtype))  # (d, K L)
            self.offset.append((mu[:, None] @ weighted)[:, 0].to(dtype))  # (K, L)
            self.mean_scaled.append((mu / noise).T.to(dtype))  # (d, K)
            self.precision.append((1 / noise).T.to(dtype))  # (d, K)
            self.constant.append((mu**2 / noise + noise.log() + math.log(2 * math.pi)).sum(1))  # (K,)
        self.eye = torch.eye(L, dtype=torch.float64, device=params.W[0].device)

    def factor(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        """V (P, K, L, L) and log|V^-1| (P, K) for each pattern."""
        information = torch.stack(self.information)  # (k, K, L, L)
        held = patterns.to(information.dtype)  # (P, k)
        chol = torch.linalg.cholesky(self.eye + torch.tensordot(held, information, dims=1))
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return torch.cholesky_inverse(chol), logdet

    def factored(self, patterns: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(p, V, log|V^-1|) for every pattern."""
        for group, V, logdet in self.groups(patterns):
            for j in range(len(V)):
                yield group.start + j, V[j], logdet[j]

    def groups(self, patterns: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(which patterns, their V, their log|V^-1|): all of them, factorised in groups of bounded size."""
        K, L = self.params.n_components, self.params.latent_dim
        step = max(1, FACTOR_BYTES // (8 * K * L * L))
        for start in range(0, len(patterns), step):
            V, logdet = self.factor(patterns[start : start + step])
            yield slice(start, start + len(V)), V, logdet

    def rows(self, held: list[tuple[int, Tensor]], V: Tensor, logdet: Tensor) -> Posterior:
        """Posterior of rows that share one pattern; `held` lists (modality, its rows)."""
        K, L = self.params.n_components, self.params.latent_dim
        flat = sum_of(z @ self.scaled[m] for m, z in held)  # (n, K L)
        b = flat.reshape(-1, K, L) - sum_of(self.offset[m] for m, _ in held)
        mean = (b.transpose(0, 1) @ V.to(self.dtype)).transpose(0, 1)  # (n, K, L)
        quadratic = (b * mean).sum(-1)
        distance = sum_of((z * z) @ self.precision[m] - 2 * (z @ self.mean_scaled[m]) for m, z in held)
        constant = sum_of(self.constant[m] for m, _ in held) + logdet
        log_joint = self.params.log_weight - 0.5 * (constant + distance - quadratic)
        return Posterior(mean, V, log_joint, quadratic)

    def evidence(self, packed: Pack) -> Tensor:
        """b = sum_m W^mT Psi_m^-1 (z^m - mu^m), (N, L), of all rows of a pack, for a single component."""
        b = packed.z[0].new_zeros((len(packed), self.params.latent_dim))
        for m, z in enumerate(packed.z):
            b = b.index_add(0, packed.places[m], z @ self.scaled[m] - self.offset[m][0])
        return b

    def means(self, packed: Pack) -> Tensor:
        """The posterior means (N, L) of all rows of a pack, in its order, for a single component."""
        parts = self.evidence(packed).split(packed.sizes)
        return torch.cat([parts[p] @ V[0].to(self.dtype) for p, V, _ in self.factored(packed.patterns)])


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Sum of a non-empty iterable of tensors."""
    total = None
    for tensor in tensors:
        total = tensor if total is None else total + tensor
    assert total is not None, "a row without any modality reached the model"
    return total
