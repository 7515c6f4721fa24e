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


def columns(params, modalities):
    edges = np.cumsum([0, *params.widths])
    return np.concatenate([np.arange(edges[m], edges[m + 1]) for m in modalities]).astype(int)


def log_joint(params, z, present_row, i, c):
    mu, cov, _ = joint(params, c)
    seen = [m for m in range(len(z)) if present_row[m]]
    at = columns(params, seen)
    x = np.concatenate([z[m][i] for m in seen])
    density = multivariate_normal(mu[at], cov[np.ix_(at, at)], allow_singular=False).logpdf(x)
    return float(params.log_weight[c]) + density


def log_likelihood(params, z, present):
    K = params.n_components
    return np.array(
        [logsumexp([log_joint(params, z, present[i], i, c) for c in range(K)]) for i in range(len(present))]
    )


def condition(params, z, present_row, i, target):
    """Mean and covariance of modality `target` given what row i has, by conditioning the stacked Gaussian(s)."""
    seen = [m for m in range(len(z)) if present_row[m]]
    at, want = columns(params, seen), columns(params, [target])
    x = np.concatenate([z[m][i] for m in seen])
    means, covs, logs = [], [], []
    for c in range(params.n_components):
        mu, cov, _ = joint(params, c)
        gain = cov[np.ix_(want, at)] @ np.linalg.inv(cov[np.ix_(at, at)])
        means.append(mu[want] + gain @ (x - mu[at]))
        covs.append(cov[np.ix_(want, want)] - gain @ cov[np.ix_(at, want)])
        logs.append(log_joint(params, z, present_row, i, c))
    r = np.exp(np.array(logs) - logsumexp(logs))
    mean = sum(w * m for w, m in zip(r, means, strict=True))
    cov = sum(w * (C + np.outer(m - mean, m - mean)) for w, C, m in zip(r, covs, means, strict=True))
    return mean, cov


def latent_posterior(params, z, present_row, i):
    """Posterior of beta for row i, by conditioning (beta, observed) jointly. One component."""
    mu, cov, W = joint(params)
    seen = [m for m in range(len(z)) if present_row[m]]
    at = columns(params, seen)
    x = np.concatenate([z[m][i] for m in seen])
    gain = W[at].T @ np.linalg.inv(cov[np.ix_(at, at)])
    return gain @ (x - mu[at]), np.eye(W.shape[1]) - gain @ W[at]


def em_step(params, z, present):
    """One EM step with the joint [W mu] update and isotropic noise, as loops over rows (method: divide by N_m)."""
    L = params.latent_dim
    W, mu, noise = [], [], []
    post = [latent_posterior(params, z, present[i], i) for i in range(len(present))]
    for m in range(len(z)):
        rows = [i for i in range(len(present)) if present[i, m]]
        left = np.zeros((z[m].shape[1], L + 1))
        right = np.zeros((L + 1, L + 1))
        for i in rows:
            mean, V = post[i]
            one = np.append(mean, 1.0)
            left += np.outer(z[m][i], one)
            right += np.outer(one, one)
            right[:L, :L] += V
        solved = left @ np.linalg.inv(right)
        w, c = solved[:, :L], solved[:, L]
        total = sum(np.sum((z[m][i] - c - w @ post[i][0]) ** 2) + np.trace(w.T @ w @ post[i][1]) for i in rows)
        W.append(w)
        mu.append(c)
        noise.append(total / (len(rows) * z[m].shape[1]))
    return W, mu, noise


def condition_entries(params, x, component=0):
    """(mean, covariance) of the NaN entries of a row x (all modalities stacked) given the others, and log p of these."""
    mu, cov, _ = joint(params, component)
    seen, gone = np.flatnonzero(~np.isnan(x)), np.flatnonzero(np.isnan(x))
    gain = cov[np.ix_(gone, seen)] @ np.linalg.inv(cov[np.ix_(seen, seen)])
    mean = mu[gone] + gain @ (x[seen] - mu[seen])
    density = multivariate_normal(mu[seen], cov[np.ix_(seen, seen)]).logpdf(x[seen])
    return mean, cov[np.ix_(gone, gone)] - gain @ cov[np.ix_(seen, gone)], density


def condition_mixture(params, x):
    """(mean, deviations) of the NaN entries of a row x given the others, and log p of these, for any components."""
    parts = [condition_entries(params, x, c) for c in range(params.n_components)]
    logs = np.array([float(params.log_weight[c]) + part[2] for c, part in enumerate(parts)])
    r = np.exp(logs - logsumexp(logs))
    mean = sum(w * part[0] for w, part in zip(r, parts, strict=True))
    square = sum(w * (np.diag(part[1]) + part[0] ** 2) for w, part in zip(r, parts, strict=True))
    return mean, np.sqrt(square - mean**2), logsumexp(logs)


def em_step_by_entry(params, x, widths, isotropic):
    """One EM step, every column from the rows in which it is not NaN; x is (N, D), all modalities stacked. One component.

    Returns W (D, L), mu (D,), noise (D,).
    """
    mu, cov, W = joint(params)
    L, D = W.shape[1], x.shape[1]
    left, right, squares, n = np.zeros((D, L + 1)), np.zeros((D, L + 1, L + 1)), np.zeros(D), np.zeros(D)
    for row in x:
        at = np.flatnonzero(~np.isnan(row))
        gain = W[at].T @ np.linalg.inv(cov[np.ix_(at, at)])
        one = np.append(gain @ (row[at] - mu[at]), 1.0)
        second = np.outer(one, one)
        second[:L, :L] += np.eye(L) - gain @ W[at]
        for j in at:
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


def likelihood_ratio(params, q, q_present, g, g_present):
    """log p(q, g share one beta) - log p(q) - log p(g), dense."""
    mu, _, W = joint(params)
    noise = np.concatenate([n[0].numpy() for n in params.noise])
    out = np.zeros((len(q_present), len(g_present)))
    for i in range(len(q_present)):
        for j in range(len(g_present)):
            a = columns(params, [m for m in range(len(q)) if q_present[i, m]])
            b = columns(params, [m for m in range(len(g)) if g_present[j, m]])
            x = np.concatenate([q[m][i] for m in range(len(q)) if q_present[i, m]])
            y = np.concatenate([g[m][j] for m in range(len(g)) if g_present[j, m]])
            both = np.concatenate([a, b])
            cov = W[both] @ W[both].T + np.diag(noise[both])
            own_a, own_b = cov[: len(a), : len(a)], cov[len(a) :, len(a) :]
            out[i, j] = (
                multivariate_normal(mu[both], cov).logpdf(np.concatenate([x, y]))
                - multivariate_normal(mu[a], own_a).logpdf(x)
                - multivariate_normal(mu[b], own_b).logpdf(y)
            )
    return out


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
