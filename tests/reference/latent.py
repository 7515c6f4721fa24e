"""Slow, obvious twins of the latent model: dense Gaussians and loops over rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

GFA_PARTS = ("mean", "W", "covariance", "precision", "relevance")


def joint(params, component=0):
    """Mean and covariance of all modalities stacked: [mu], W W^T + diag(noise)."""
    W = np.concatenate([w[component].numpy() for w in params.W])
    mu = np.concatenate([m[component].numpy() for m in params.mu])
    noise = np.concatenate([n[component].numpy() for n in params.noise])
    return mu, W @ W.T + np.diag(noise), W


def condition(mu, cov, x):
    """(mean, covariance) of the NaN entries of x under N(mu, cov) given the others, and log p of these."""
    seen, gone = np.flatnonzero(~np.isnan(x)), np.flatnonzero(np.isnan(x))
    gain = cov[np.ix_(gone, seen)] @ np.linalg.inv(cov[np.ix_(seen, seen)])
    mean = mu[gone] + gain @ (x[seen] - mu[seen])
    density = multivariate_normal(mu[seen], cov[np.ix_(seen, seen)]).logpdf(x[seen])
    return mean, cov[np.ix_(gone, gone)] - gain @ cov[np.ix_(seen, gone)], density


def condition_mixture(params, x):
    """(mean, deviations) of the NaN entries of a row x given the others, and log p of these, for any components."""
    parts = [condition(*joint(params, c)[:2], x) for c in range(params.n_components)]
    logs = np.array([float(params.log_weight[c]) + part[2] for c, part in enumerate(parts)])
    r = np.exp(logs - logsumexp(logs))
    mean = sum(w * part[0] for w, part in zip(r, parts, strict=True))
    square = sum(w * (np.diag(part[1]) + part[0] ** 2) for w, part in zip(r, parts, strict=True))
    return mean, np.sqrt(square - mean**2), logsumexp(logs)


def posterior(params, x):
    """Mean and covariance of beta given the entries of a row x that are not NaN. One component."""
    mu, cov, W = joint(params)
    at = np.flatnonzero(~np.isnan(x))
    gain = W[at].T @ np.linalg.inv(cov[np.ix_(at, at)])
    return gain @ (x[at] - mu[at]), np.eye(W.shape[1]) - gain @ W[at]


def em_step(params, x, widths, isotropic):
    """One EM step, every column from the rows in which it is not NaN; x is (N, D), all modalities stacked. One component.

    Returns W (D, L), mu (D,), noise (D,).
    """
    L, D = params.latent_dim, x.shape[1]
    left, right, squares, n = np.zeros((D, L + 1)), np.zeros((D, L + 1, L + 1)), np.zeros(D), np.zeros(D)
    for row in x:
        mean, V = posterior(params, row)
        one = np.append(mean, 1.0)
        second = np.outer(one, one)
        second[:L, :L] += V
        for j in np.flatnonzero(~np.isnan(row)):
            left[j] += row[j] * one
            right[j] += second
            squares[j] += row[j] ** 2
            n[j] += 1
    solved = np.stack([left[j] @ np.linalg.inv(right[j]) for j in range(D)])
    rest = np.array([squares[j] - 2 * solved[j] @ left[j] + solved[j] @ right[j] @ solved[j] for j in range(D)])
    noise = rest / n
    if isotropic:
        edges = np.cumsum([0, *widths])
        for low, high in pairwise(edges):
            noise[low:high] = rest[low:high].sum() / n[low:high].sum()
    return solved[:, :L], solved[:, L], noise


def likelihood_ratio(params, q, g):
    """log p(q, g share one beta) - log p(q) - log p(g) of rows (n, D) with NaN, dense."""
    mu, cov, W = joint(params)
    out = np.zeros((len(q), len(g)))
    for i, j in np.ndindex(out.shape):
        both = np.concatenate([q[i], g[j]])
        shared = np.kron(np.ones((2, 2)), W @ W.T) + np.kron(np.eye(2), cov - W @ W.T)
        own = condition(mu, cov, q[i])[2] + condition(mu, cov, g[j])[2]
        out[i, j] = condition(np.tile(mu, 2), shared, both)[2] - own
    return out


def dense(params):
    """Mean and covariance of all modalities stacked of a whitened model: z = centre + Q D y + what is outside Q."""
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


def gfa_bound(loadings, z, present):
    """The variational bound of group factor analysis up to a constant, row by row; q(b) is the best one for the loadings."""
    mean, W, cov, tau, alpha = ([getattr(part, name).numpy() for part in loadings] for name in GFA_PARTS)
    L = W[0].shape[1]
    bound = 0.0
    for i in range(len(present)):
        held = [m for m in range(len(z)) if present[i, m]]
        columns_held = [(m, d) for m in held for d in range(len(mean[m]))]
        V = np.linalg.inv(
            np.eye(L) + sum(tau[m][d] * (np.outer(W[m][d], W[m][d]) + cov[m][d]) for m, d in columns_held)
        )
        b = V @ sum(tau[m][d] * (z[m][i, d] - mean[m][d]) * W[m][d] for m, d in columns_held)
        second = np.outer(b, b) + V
        bound += 0.5 * np.linalg.slogdet(V)[1] - 0.5 * np.trace(second)
        for m, d in columns_held:
            rest = z[m][i, d] - mean[m][d]
            ww = np.outer(W[m][d], W[m][d]) + cov[m][d]
            bound += 0.5 * np.log(tau[m][d]) - 0.5 * tau[m][d] * (
                rest**2 - 2 * rest * W[m][d] @ b + np.sum(ww * second)
            )
    for m in range(len(z)):
        for d in range(len(mean[m])):
            square = W[m][d] ** 2 + np.diag(cov[m][d])
            bound += 0.5 * np.sum(np.log(alpha[m]) - alpha[m] * square) + 0.5 * np.linalg.slogdet(cov[m][d])[1]
    return bound
