"""Partial whitening: turn each modality into its principal directions, even out their variances, fit there, turn back.

With principal directions Q (d, r) of variances l, and 0 < p <= 1, the latent model is fitted to
    y = D^-1 Q^T (z - centre),    D = diag(l^(p/2)),    y = W_y beta + mu_y + eps,    eps ~ N(0, Psi_y).
In the space of z this is again a linear-Gaussian model, with noise that is no longer diagonal:
    W = Q D W_y,    mu = centre + Q D mu_y,    Psi = Q D Psi_y D Q^T + rest (I - Q Q^T),
where `rest` is the mean variance outside the kept directions. So means, deviations and likelihoods are those of z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calmrl._support.distributed import all_sum
from calmrl._support.linalg import principal_directions
from calmrl.arrays import Views
from calmrl.latent.em import Fit, Settings, fit_settings, smallest_noise
from calmrl.latent.model import Parameters
from calmrl.latent.rows import Pack, Source, mapped_source

RANK = 400  # principal directions that are kept at most


@dataclass(frozen=True)
class Rotation:
    """How one modality was turned and scaled for the fit, and its noise there."""

    directions: Tensor  # (d, r) Q, orthonormal columns
    scale: Tensor  # (r,) the diagonal of D
    centre: Tensor  # (d,)
    rest: Tensor  # () variance outside the kept directions
    noise: Tensor  # (K, r) the diagonal of Psi_y, per component

    @property
    def spread(self) -> Tensor:
        """Q D, (d, r): from y back to z."""
        return self.directions * self.scale

    @property
    def gather(self) -> Tensor:
        """Q D^-1, (d, r): from z to y."""
        return self.directions / self.scale

    def weighted(self, W: Tensor) -> Tensor:
        """Psi^-1 W, (K, d, L), for W = Q D W_y."""
        return self.gather @ ((self.gather.T @ W) / self.noise[..., None])

    def variances(self) -> Tensor:
        """The diagonal of Psi, (K, d)."""
        outside = (1 - self.directions.square().sum(1)).clamp(min=0)
        return self.noise @ self.spread.square().T + self.rest * outside

    def covariance(self) -> Tensor:
        """Psi, (K, d, d)."""
        inside = (self.spread * self.noise[:, None]) @ self.spread.T
        return inside + self.rest * (torch.eye(len(self.centre)).to(inside) - self.directions @ self.directions.T)

    def distance(self, z: Tensor, mu: Tensor) -> Tensor:
        """|z - mu|^2 in the metric of Psi^-1 for every row and component, (n, K)."""
        centred = z - self.centre.to(z.dtype)
        inside = centred @ self.gather.to(z.dtype)  # (n, r)
        middle = (mu - self.centre) @ self.gather  # (K, r)
        outside = (centred.square().sum(1) - (inside * self.scale.to(z.dtype)).square().sum(1)).clamp(min=0)
        gap = inside[:, None] - middle.to(z.dtype)  # (n, K, r)
        return (gap.square() / self.noise.to(z.dtype)).sum(2) + (outside.double() / self.rest)[:, None].to(z.dtype)

    def log_determinant(self) -> Tensor:
        """d log 2 pi + log|Psi|, (K,)."""
        d, r = self.directions.shape
        inside = (self.noise.log() + 2 * self.scale.log()).sum(1)
        return inside + (d - r) * self.rest.log() + d * math.log(2 * math.pi)

    def draw(self, noise: Tensor, choice: Tensor) -> Tensor:
        """Noise with covariance Psi, (n, d), from standard normal (n, d); `choice` is the component of each row."""
        inside = noise @ self.directions  # (n, r), standard normal again
        outside = noise - inside @ self.directions.T
        return (inside * self.noise[choice].sqrt()) @ self.spread.T + self.rest.sqrt() * outside

    def moved(self, shift: Tensor) -> Rotation:
        return replace(self, centre=self.centre + shift)

    def each(self, change: Callable[[Tensor], Tensor]) -> Rotation:
        return Rotation(**{name: change(part) for name, part in vars(self).items()})


@dataclass(frozen=True)
class Axes:
    """Principal directions of one modality, around its mean."""

    directions: Tensor  # (d, r)
    variance: Tensor  # (r,) largest first
    rest: Tensor  # () mean variance outside them


def principal_axes(source: Source, rank: int = RANK) -> list[Axes]:
    """The leading principal directions of every modality, from the rows of all processes that have it."""
    sums = [torch.zeros(d, d, dtype=torch.float64, device=source.device) for d in source.widths]
    for products in source.each(_products, source.widths):
        for total, product in zip(sums, products, strict=True):
            total += product
    if source.shared:
        sums = all_sum(sums)
    counts = [n.clamp(min=1) for n in source.count]
    return [_axes(total / n, mean, rank) for total, n, mean in zip(sums, counts, source.mean, strict=True)]


def _products(packs: Iterable[Pack], widths: tuple[int, ...]) -> list[Tensor]:
    """Sums of z z^T per modality over the rows of one block."""
    sums: list[Tensor] = []
    for packed in packs:
        sums = sums or [rows.new_zeros((d, d), dtype=torch.float64) for rows, d in zip(packed.z, widths, strict=True)]
        for total, rows in zip(sums, packed.z, strict=True):
            total.addmm_(rows.double().T, rows.double())
    return sums


def _axes(covariance: Tensor, mean: Tensor, rank: int) -> Axes:
    # what a float32 covariance cannot tell from zero is left to `rest`; a constant modality keeps one direction
    variance, directions = principal_directions(covariance, rank, 1e-7, torch.linalg.eigh)
    kept = directions.shape[1]
    rest = variance[kept:].mean() if kept < len(variance) else variance[-1]
    floor = smallest_noise(variance[:1], mean, relative=1e-7)
    return Axes(directions, variance[:kept], torch.maximum(rest, floor))


@dataclass(frozen=True)
class Inside:
    """Rows of z -> rows of y; small enough to be sent to where the rows are."""

    dtype: torch.dtype
    mean: list[Tensor]  # (d_m,)
    gathers: list[Tensor]  # (d_m, r_m) Q D^-1

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(gather.shape[1] for gather in self.gathers)

    def __call__(self, views: Views) -> Views:
        arrays: dict[str, Any] = {}
        for m, (name, values) in enumerate(zip(views.names, views.rows(0, len(views)), strict=True)):
            centred = None if values is None else values.detach().to(self.dtype) - self.mean[m]
            arrays[name] = None if centred is None else centred @ self.gathers[m]
        return Views(arrays, views.present, self.widths)


class Whitening:
    """A source in turned, scaled coordinates, and the way back from a model that was fitted there."""

    def __init__(self, source: Source, axes: list[Axes], power: float) -> None:
        self.axes, self.outer = axes, source
        self.scale = [torch.where(a.variance > 0, a.variance, 1.0) ** (power / 2) for a in axes]
        gathers = [(a.directions / scale).to(source.dtype) for a, scale in zip(axes, self.scale, strict=True)]
        self.inside = Inside(source.dtype, [mean.to(source.dtype) for mean in source.mean], gathers)
        self.inner = mapped_source(source, self.inside, self.inside.widths)

    def back(self, params: Parameters) -> Parameters:
        """A model of the inner source (in its centred frame) as one of the outer source, in that one's centred frame."""
        params = params.moved(self.inner.mean)
        rotations = [
            Rotation(a.directions, scale, torch.zeros_like(a.directions[:, 0]), a.rest, noise)
            for a, scale, noise in zip(self.axes, self.scale, params.noise, strict=True)
        ]
        return Parameters(
            params.names,
            W=[rotation.spread @ W for rotation, W in zip(rotations, params.W, strict=True)],
            mu=[mu @ rotation.spread.T for rotation, mu in zip(rotations, params.mu, strict=True)],
            noise=[rotation.variances() for rotation in rotations],
            log_weight=params.log_weight,
            rotations=rotations,
        )

    def fit(self, settings: Settings, **options: Any) -> Fit:
        """`fit_settings` on the inner source; parameters come back in the outer source's centred frame."""
        fit = fit_settings(self.inner, settings, **options)
        return replace(fit, params=self.back(fit.params), last=None)
