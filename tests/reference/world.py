"""The best imputation of a linear world by conditioning one joint Gaussian, row by row."""

from __future__ import annotations

import numpy as np

from calmrl.datasets.world import Truth


def conditional_mean(truth: Truth, row: dict[str, np.ndarray], present: np.ndarray) -> np.ndarray:
    """The concatenated modalities of one row, with E[missing | observed] in the missing places."""
    names = list(truth.W)
    mean = np.concatenate([truth.mu[name] for name in names])
    loading = np.concatenate([truth.W[name] for name in names])
    covariance = loading @ loading.T
    here, start = np.zeros(len(mean), dtype=bool), 0
    for name, seen in zip(names, present, strict=True):
        d = len(truth.mu[name])
        block = slice(start, start + d)
        covariance[block, block] += truth.P[name] @ truth.P[name].T + truth.sigma[name] ** 2 * np.eye(d)
        here[block] = seen
        start += d
    values = np.concatenate([row[name] for name in names]).astype(float)
    gain = covariance[np.ix_(~here, here)] @ np.linalg.inv(covariance[np.ix_(here, here)])
    values[~here] = mean[~here] + gain @ (values[here] - mean[here])
    return values


def conditional_error(truth: Truth, present: np.ndarray) -> float:
    """Summed expected squared error over summed variance of the missing entries, from the joint covariance."""
    names = list(truth.W)
    loading = np.concatenate([truth.W[name] for name in names])
    covariance = loading @ loading.T
    owner = np.concatenate([[j] * len(truth.mu[name]) for j, name in enumerate(names)])
    for j, name in enumerate(names):
        block = np.ix_(owner == j, owner == j)
        covariance[block] += truth.P[name] @ truth.P[name].T + truth.sigma[name] ** 2 * np.eye((owner == j).sum())
    error = variance = 0.0
    for row in present:
        here = row[owner]
        if here.all():
            continue
        missing = covariance[np.ix_(~here, ~here)]
        cross = covariance[np.ix_(~here, here)]
        error += np.trace(missing - cross @ np.linalg.solve(covariance[np.ix_(here, here)], cross.T))
        variance += np.trace(missing)
    return error / variance
