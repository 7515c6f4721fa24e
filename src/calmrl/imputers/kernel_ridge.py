"""Kernel ridge regression of many columns at once: leave-one-out errors, landmarks, predictive deviations.

k(x, y) = exp(-gamma |x - y|^2) + linear x.y,    f(x) = k(x, X) (K + alpha I)^-1 Y.
With features p(x), p(x).p(y) = k(x, y) (on landmarks: its Nystrom approximation), chosen so that P^T P = diag(e),
    hat_i = sum_j P_ij^2 / (e_j + alpha),    leave-one-out residual_i = (Y - P (diag(e) + alpha)^-1 P^T Y)_i / (1 - hat_i).
As a Gaussian process, Var f(x) = s^2 (alpha + k(x, x) - |p(x)|^2 + alpha sum_j p_j(x)^2 / (e_j + alpha)), one s per column.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SMALLEST = 1e-10  # eigenvalues of the kernel below this, relative to the largest, are rounding


@dataclass(frozen=True)
class Kernel:
    """RBF of width `gamma` plus `linear` times the inner product."""

    gamma: float
    linear: float

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        inner = left @ right.T
        square = left.square().sum(1)[:, None] + right.square().sum(1) - 2 * inner
        return torch.exp(-self.gamma * square.clamp(min=0)) + self.linear * inner

    def self_value(self, x: Tensor) -> Tensor:
        """k(x, x) for every row."""
        return 1 + self.linear * x.square().sum(1)


@dataclass(frozen=True)
class Features:
    """p(x) = T^T k(landmarks, x), with P^T P = diag(energy) over the training rows."""

    kernel: Kernel
    landmarks: Tensor  # (l, D)
    turn: Tensor  # (l, r) T
    energy: Tensor  # (r,)

    def of(self, x: Tensor) -> Tensor:
        return self.kernel.between(x, self.landmarks) @ self.turn


def make_features(kernel: Kernel, x: Tensor, landmarks: int) -> tuple[Features, Tensor]:
    """(features, P of the training rows); exact for at most `landmarks` rows, which are evenly spaced otherwise."""
    exact = len(x) <= landmarks
    points = x.contiguous() if exact else x[torch.linspace(0, len(x) - 1, landmarks).round().long()]
    energy, axes = torch.linalg.eigh(kernel.between(points, points))
    kept = energy > SMALLEST * energy[-1]
    energy, axes = energy[kept], axes[:, kept]
    turn = axes / energy.sqrt()
    if exact:
        return Features(kernel, points, turn.contiguous(), energy), axes * energy.sqrt()
    p = kernel.between(x, points) @ turn
    energy, axes = torch.linalg.eigh(p.T @ p)
    energy = energy.clamp(min=0)
    return Features(kernel, points, (turn @ axes).contiguous(), energy), p @ axes


def leave_one_out(
    p: Tensor, energy: Tensor, y: Tensor, alpha: float, along: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(residuals (n, d) of every row predicted from the others, 1 - hat (n,)); `along` is P^T Y if that is there."""
    shrink = 1 / (energy + alpha)
    left = (1 - p.square() @ shrink).clamp(min=1e-8)
    along = p.T @ y if along is None else along
    return (y - p @ (shrink[:, None] * along)) / left[:, None], left


def best_alpha(p: Tensor, energy: Tensor, y: Tensor, alphas: tuple[float, ...]) -> tuple[float, float]:
    """(squared leave-one-out residual, summed; alpha) of the best alpha."""
    along = p.T @ y
    return min((float(leave_one_out(p, energy, y, alpha, along)[0].square().sum()), alpha) for alpha in alphas)


def fewer_columns(y: Tensor) -> Tensor:
    """(n, at most n) with the same Y Y^T: rows keep all their inner products, so that squared errors are the same."""
    if y.shape[1] <= y.shape[0]:
        return y
    energy, axes = torch.linalg.eigh(y @ y.T)
    return axes * energy.clamp(min=0).sqrt()


@dataclass(frozen=True)
class Regression:
    """A fitted kernel ridge regression."""

    features: Features
    alpha: float
    weights: Tensor  # (r, d)
    centre: Tensor  # (d,) mean of the targets
    variance: Tensor  # (d,) s^2

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, deviation), each (n, d)."""
        p = self.features.of(x)
        unsure = self.features.kernel.self_value(x) - p.square().sum(1)
        unsure = unsure.clamp(min=0) + self.alpha * p.square() @ (1 / (self.features.energy + self.alpha))
        deviation = ((self.alpha + unsure)[:, None] * self.variance).sqrt()
        return p @ self.weights + self.centre, deviation


@dataclass(frozen=True)
class LeftOut:
    """What leaving out each training row in turn showed."""

    ratio: Tensor  # (n, d) residuals in units of their predicted deviations
    error: float  # squared residuals over squared deviations from the mean


def fit_regression(
    kernel: Kernel, x: Tensor, y: Tensor, alphas: tuple[float, ...], landmarks: int
) -> tuple[Regression, LeftOut]:
    """The regression with the best alpha, and what it does on rows that are left out."""
    features, p = make_features(kernel, x, landmarks)
    centre = y.mean(0)
    y = y - centre
    alpha = best_alpha(p, features.energy, fewer_columns(y), alphas)[1] if len(alphas) > 1 else alphas[0]
    along = p.T @ y
    residual, left = leave_one_out(p, features.energy, y, alpha, along)
    unit = alpha / left  # variance of a left-out row, up to the scale of its column
    variance = (residual.square() / unit[:, None]).mean(0)
    weights = along / (features.energy + alpha)[:, None]
    floor = torch.finfo(torch.float64).tiny
    ratio = residual / (unit[:, None] * variance + floor).sqrt()
    total = float(y.square().sum())
    error = float(residual.square().sum()) / total if total > 0 else 1.0
    return Regression(features, alpha, weights.contiguous(), centre, variance), LeftOut(ratio, error)
