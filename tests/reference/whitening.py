"""Slow, obvious twin of the whitened latent model: one dense Gaussian over all columns of z."""

from __future__ import annotations

import numpy as np


def dense(params):
    """Mean and covariance of all modalities stacked, from the turned model: z = centre + Q D y + what is outside Q."""
    means, loadings, blocks = [], [], []
    for W, mu, rotation in zip(params.W, params.mu, params.rotations, strict=True):
        Q, D = rotation.directions.numpy(), np.diag(rotation.scale.numpy())
        centre, noise = rotation.centre.numpy(), np.diag(rotation.noise[0].numpy())
        W_y = np.linalg.inv(D) @ Q.T @ W[0].numpy()
        mu_y = np.linalg.inv(D) @ Q.T @ (mu[0].numpy() - centre)
        outside = np.eye(len(centre)) - Q @ Q.T
        means.append(centre + Q @ D @ mu_y)
        loadings.append(Q @ D @ W_y)
        blocks.append(Q @ D @ noise @ D @ Q.T + float(rotation.rest) * outside)
    W = np.concatenate(loadings)
    covariance = W @ W.T
    start = 0
    for block in blocks:
        stop = start + len(block)
        covariance[start:stop, start:stop] += block
        start = stop
    return np.concatenate(means), covariance


def condition(params, row, seen, target):
    """Mean and covariance of modality `target` given the modalities `seen` of one row (a list of vectors)."""
    mean, covariance = dense(params)
    edges = np.cumsum([0, *params.widths])
    at = np.concatenate([np.arange(edges[m], edges[m + 1]) for m in seen])
    want = np.arange(edges[target], edges[target + 1])
    gain = covariance[np.ix_(want, at)] @ np.linalg.inv(covariance[np.ix_(at, at)])
    x = np.concatenate([row[m] for m in seen])
    return mean[want] + gain @ (x - mean[at]), covariance[np.ix_(want, want)] - gain @ covariance[np.ix_(at, want)]
