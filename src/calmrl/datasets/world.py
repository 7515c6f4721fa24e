"""A generator whose truth is known: what a method can reach at best is a number, not a guess.

    s ~ N(0, I)   shared by all modalities,      p^m ~ N(0, I)   private to modality m
    u^m = W^m s + P^m p^m                         entries of W^m and P^m ~ N(0, 1 / shared)
    z^m = (1 - a) u^m + a Q^m tanh(u^m) + mu^m + sigma_m eps

`a` bends the views (Q^m is a random rotation), `gap` is the root mean square of mu^m. For a = 0 all is Gaussian and, as
long as hiding does not depend on the values, the best imputation is E[z^m' | observed], which `Truth.impute` computes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.hiding import hide
from calmrl.datasets.preparation import split_by_group
from calmrl.errors import InputError


@dataclass(frozen=True)
class Truth:
    """What the generator knows: the complete `z`, the latents, and the parameters, by modality."""

    z: dict[str, np.ndarray]  # complete, as drawn
    shared: np.ndarray  # (N, shared)
    private: dict[str, np.ndarray]  # (N, private)
    W: dict[str, np.ndarray]  # (d, shared)
    P: dict[str, np.ndarray]  # (d, private)
    mu: dict[str, np.ndarray]  # (d,)
    sigma: dict[str, float]
    nonlinear: float

    def impute(self, z: Mapping[str, np.ndarray], present: np.ndarray) -> dict[str, np.ndarray]:
        """The best imputation of any rows: observed blocks as they are, E[z^m' | observed] elsewhere."""
        imputed = {name: np.array(array, dtype=float) for name, array in z.items()}
        for pattern in np.unique(present, axis=0):
            rows = np.flatnonzero((present == pattern).all(axis=1))
            total = np.zeros((len(rows), self.shared.shape[1]))
            for name, here in zip(self.W, pattern, strict=True):
                if here:
                    total += (imputed[name][rows] - self.mu[name]) @ self._weights(name)
            mean = total @ self._covariance(pattern)
            for name, here in zip(self.W, pattern, strict=True):
                if not here:
                    imputed[name][rows] = mean @ self.W[name].T + self.mu[name]
        return imputed

    def error(self, present: np.ndarray) -> float:
        """The expected normalised error of `impute`: summed squared error / summed variance over the hidden blocks."""
        error = variance = 0.0
        patterns, counts = np.unique(present, axis=0, return_counts=True)
        for pattern, count in zip(patterns, counts, strict=True):
            covariance = self._covariance(pattern)
            for name, here in zip(self.W, pattern, strict=True):
                if not here:
                    own = float((self.P[name] ** 2).sum() + len(self.P[name]) * self.sigma[name] ** 2)
                    error += count * (float(np.einsum("dl,lm,dm->", self.W[name], covariance, self.W[name])) + own)
                    variance += count * (float((self.W[name] ** 2).sum()) + own)
        if variance == 0.0:
            raise InputError("nothing is hidden, so that there is no imputation error")
        return error / variance

    def _weights(self, name: str) -> np.ndarray:
        """(P P^T + sigma^2 I)^-1 W, (d, shared): private latents are noise to the other modalities."""
        if self.nonlinear:
            raise InputError("the best imputation is known for linear views only; generate the world with nonlinear=0")
        private = self.P[name]
        return np.linalg.solve(private @ private.T + self.sigma[name] ** 2 * np.eye(len(private)), self.W[name])

    def _covariance(self, pattern: np.ndarray) -> np.ndarray:
        """Cov[s | observed], (shared, shared)."""
        precision = np.eye(self.shared.shape[1])
        for name, here in zip(self.W, pattern, strict=True):
            if here:
                precision += self.W[name].T @ self._weights(name)
        return np.linalg.inv(precision)


class World(FeatureSet):
    """Generated features; hidden blocks are NaN in `z` and kept in `truth.z`."""

    truth: Truth


def world(
    n: int = 2000,
    widths: Mapping[str, int] | None = None,
    shared: int = 16,
    private: int = 4,
    noise: float | Sequence[float] = 0.5,
    nonlinear: float = 0.5,
    gap: float = 1.0,
    classes: int = 10,
    kind: str = "mcar",
    rate: float = 0.3,
    groups: Sequence[Sequence[int]] | None = None,
    seed: int = 0,
) -> World:
    """Draw a world with the formulas above; labels are the largest of `classes` projections of the shared latents.

    Parameters
    ----------
    n : int
        Number of rows.
    widths : mapping of str to int, optional
        Modality -> d; by default image 64, text 48, audio 32.
    shared, private : int
        Number of latents that all modalities share, and of those that each has to itself.
    noise : float or sequence of float
        sigma of all modalities, or of each.
    nonlinear, gap : float
        a, from 0 (linear) to 1, and the root mean square of mu.
    classes : int
        Number of labels.
    kind, rate, groups
        What is missing; see `calmrl.data.hide`. Nothing at rate 0.
    seed : int

    Returns
    -------
    World
        A `FeatureSet` with `truth`.
    """
    sizes = {"image": 64, "text": 48, "audio": 32} if widths is None else dict(widths)
    sigmas = [float(noise)] * len(sizes) if isinstance(noise, (int, float)) else [float(value) for value in noise]
    if len(sigmas) != len(sizes):
        raise InputError(f"noise has {len(sigmas)} values but there are {len(sizes)} modalities ({', '.join(sizes)})")
    if not 0 <= nonlinear <= 1:
        raise InputError(f"nonlinear must lie between 0 (linear) and 1; got {nonlinear}")
    rng = np.random.default_rng(seed)
    W = {name: rng.normal(size=(d, shared)) / np.sqrt(shared) for name, d in sizes.items()}
    P = {name: rng.normal(size=(d, private)) / np.sqrt(shared) for name, d in sizes.items()}
    mu = {name: gap * rng.normal(size=d) for name, d in sizes.items()}
    s = rng.normal(size=(n, shared))
    p = {name: rng.normal(size=(n, private)) for name in sizes}
    z = {}
    for name, sigma in zip(sizes, sigmas, strict=True):
        view = s @ W[name].T + p[name] @ P[name].T
        if nonlinear:
            rotation = np.linalg.qr(rng.normal(size=(sizes[name], sizes[name])))[0]
            view = (1 - nonlinear) * view + nonlinear * np.tanh(view) @ rotation.T
        z[name] = (view + mu[name] + sigma * rng.normal(size=view.shape)).astype(np.float32)
    labels = np.argmax(s @ rng.normal(size=(shared, classes)), axis=1)
    options: dict[str, Any] = {"groups": groups} if kind == "source" else {"values": z} if kind == "value" else {}
    present = hide(np.ones((n, len(sizes)), dtype=bool), rate, np.random.default_rng(seed + 1), kind, **options)
    ids = [f"world-{number}" for number in range(n)]
    made = World(
        {name: np.where(present[:, [j]], array, np.float32(np.nan)) for j, (name, array) in enumerate(z.items())},
        present,
        meta_table(n, ids=ids, split=split_by_group(ids), labels=labels),
        name="world",
        source=f"generated by calmrl.datasets.world with seed {seed}",
    )
    made.truth = Truth(z, s, p, W, P, mu, dict(zip(sizes, sigmas, strict=True)), nonlinear)
    return made


def synth(seed: int = 0) -> World:
    """The linear world of the benchmark: 5,000 rows, 4 x 128, 32 latents, 40 % of the blocks missing.

    The best possible normalised error is 0.575 (0.573 on this draw, seed 0).
    """
    widths = {"m0": 128, "m1": 128, "m2": 128, "m3": 128}
    noise = (0.7, 0.9, 1.1, 1.25)
    made = world(5000, widths, shared=32, private=0, noise=noise, nonlinear=0.0, gap=0.0, rate=0.4, seed=seed)
    made.name = "synth"
    return made
