"""The M-step: [W mu] jointly (or one after the other, as printed), then the noise, from sufficient statistics.

Per modality, over the N_m rows that have it, with M1_i = [m_i, 1] and a prior worth `loading` rows on W and `mean` rows on mu:
    [W mu] = (sum_i z_i M1_i^T) (sum_i M1_i M1_i^T + blockdiag(sum_i V_i + loading I, mean))^-1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.sufficient_statistics import Statistics


@dataclass(frozen=True)
class Prior:
    """A prior in units of rows: each strength acts like that many rows that say W = centre, mu = 0, noise = scale.

    All zero is maximum likelihood. Data are centred, so mu = 0 is the column mean. `floor` bounds each modality's noise.
    """

    loading: float
    mean: float
    noise: float
    weight: float
    scale: list[Tensor]  # (d_m,) variance that the noise prior points to
    floor: list[Tensor]  # () smallest noise variance
    centre: list[Tensor] | None = None  # (d_m, L) loadings that the prior points to; None is zero

    def log_density(self, params: Parameters) -> float:
        """Log of the prior up to a constant: what EM adds to the log-likelihood to get its objective."""
        total = self.weight * params.log_weight.sum()
        for m, (W, mu, noise, scale) in enumerate(zip(params.W, params.mu, params.noise, self.scale, strict=True)):
            away = W if self.centre is None else W - self.centre[m]
            penalty = self.loading * away.square().sum(2) + self.mean * mu**2 + self.noise * scale
            total = total - 0.5 * (penalty / noise + self.noise * noise.log()).sum()
        return float(total)


def single_prior(rows: float, variance: list[Tensor], floor: list[Tensor]) -> Prior:
    """The prior of one component: as if `rows` more rows were pure noise of the columns' variance (W = 0, noise = variance)."""
    return Prior(loading=rows, mean=0.0, noise=rows, weight=0.0, scale=variance, floor=floor)


def smallest_noise(variance: Tensor, mean: Tensor, relative: float) -> Tensor:
    """The smallest noise variance allowed: a share of the variance, and what rounding leaves of values so large."""
    return relative * variance.mean() + 1e-14 * (1 + mean.square().mean())


def maximise(stats: Statistics, old: Parameters, prior: Prior, *, m_step: str, isotropic: bool) -> Parameters:
    """The parameters that maximise the expected complete-data log-likelihood plus the log prior."""
    L = old.latent_dim
    eye = torch.eye(L, dtype=torch.float64, device=stats.n.device)
    W_new, mu_new, noise_new = [], [], []
    for m in range(len(old.names)):
        n, m1, zm, z1, z2 = stats.n[m], stats.m1[m], stats.zm[m], stats.z1[m], stats.z2[m]
        if not bool((n > 0).any()):  # never seen: nothing to learn from
            W_new.append(old.W[m])
            mu_new.append(old.mu[m])
            noise_new.append(old.noise[m])
            continue
        if prior.centre is not None:
            zm = zm + prior.loading * prior.centre[m]
            z2 = z2 + prior.loading * prior.centre[m].square().sum(1)
        m2 = stats.m2[m] + prior.loading * eye
        count = n + prior.mean  # (K,)
        gram = torch.cat(
            [torch.cat([m2, m1[..., None]], dim=2), torch.cat([m1, count[:, None]], dim=1)[:, None]], dim=1
        )  # (K, L + 1, L + 1)
        target = torch.cat([zm, z1[..., None]], dim=2)  # (K, d, L + 1)
        if m_step == "joint":
            solved = _solve(gram, target)
        else:
            mu = (z1 - (old.W[m] @ m1[..., None])[..., 0]) / count[:, None]
            W = _solve(m2, zm - mu[..., None] * m1[:, None])
            solved = torch.cat([W, mu[..., None]], dim=2)
        # expected squared residual + penalty, per feature, without touching the data again: solved gram = target, so that
        # one product is enough where a prior keeps gram far from singular
        explained = (solved * target).sum(2)  # (K, d)
        residual = z2 - explained
        if m_step != "joint" or prior.loading == 0:
            residual = residual - explained + ((solved @ gram) * solved).sum(2)
        residual = residual + prior.noise * prior.scale[m]
        if isotropic:
            residual = residual.mean(1, keepdim=True).expand_as(residual)
        W_new.append(solved[..., :L].contiguous())
        mu_new.append(solved[..., L].contiguous())
        noise_new.append((residual / (n + prior.noise)[:, None]).clamp(min=prior.floor[m]))
    weight = stats.rows + prior.weight
    return Parameters(old.names, W_new, mu_new, noise_new, (weight / weight.sum()).log())


def _solve(gram: Tensor, target: Tensor) -> Tensor:
    """target gram^-1 for a symmetric gram: by Cholesky, or by LU where rounding left it without one."""
    chol, bad = torch.linalg.cholesky_ex(gram)
    if bool(bad.any()):
        return torch.linalg.solve(gram, target.mT).mT
    return target @ torch.cholesky_inverse(chol)


def latent_moments(stats: Statistics) -> tuple[Tensor, Tensor] | None:
    """Mean (K, L) and Cholesky factor (K, L, L) of the covariance that the latents turned out to have; None if degenerate."""
    rows = stats.rows[:, None]
    mean = stats.all1 / rows
    covariance = stats.all2 / rows[..., None] - mean[:, :, None] * mean[:, None, :]
    chol, bad = torch.linalg.cholesky_ex(covariance)
    return None if bool(bad.any()) else (mean, chol)


def expand(params: Parameters, mean: Tensor, chol: Tensor) -> Parameters:
    """Parameter expansion (PX-EM): latents with that mean and covariance, folded into mu and W."""
    return replace(
        params,
        mu=[mu + (W @ mean[..., None])[..., 0] for W, mu in zip(params.W, params.mu, strict=True)],
        W=[W @ chol for W in params.W],
    )
