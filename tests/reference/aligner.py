"""The aligner the slow way: the kernel pair by pair, and conditioning of one dense Gaussian row by row."""

from __future__ import annotations

import numpy as np


def kernel_table(x, y, sharpness, linear):
    return np.array([[np.exp(-sharpness * np.sum((a - b) ** 2)) + linear * np.dot(a, b) for b in y] for a in x])


def kernel_features(train, new, sharpness, linear):
    """(features of `new`, variances): centred kernel PCA of `train` with all directions, signs arbitrary."""
    n = len(train)
    table = kernel_table(train, train, sharpness, linear)
    centre = np.eye(n) - np.full((n, n), 1 / n)
    values, vectors = np.linalg.eigh(centre @ table @ centre)
    values, vectors = values[::-1], vectors[:, ::-1]
    keep = values > 1e-10 * values[0]
    values, vectors = values[keep], vectors[:, keep]
    features = []
    for row in kernel_table(new, train, sharpness, linear):
        centred = row - row.mean() - table.mean(0) + table.mean()
        features.append([centred @ v / np.sqrt(value) for v, value in zip(vectors.T, values, strict=True)])
    return np.array(features), values / n


def posterior_mean(W, mu, noise, features, present):
    """E[beta | observed] of each row by conditioning the joint Gaussian of latents and observed values."""
    out = []
    for i, pattern in enumerate(present):
        held = [m for m, has in enumerate(pattern) if has]
        loadings = np.concatenate([W[m] for m in held])
        middle = np.concatenate([mu[m] for m in held])
        values = np.concatenate([features[m][i] for m in held])
        covariance = loadings @ loadings.T + np.diag(np.concatenate([noise[m] for m in held]))
        out.append(loadings.T @ np.linalg.inv(covariance) @ (values - middle))
    return np.array(out)


def csls(scores, k):
    """2 s(q, g) - r(q) - r(g), one pair at a time."""
    scores = np.asarray(scores, dtype=float)

    def near(values):
        return np.mean(sorted(values, reverse=True)[:k])

    return np.array(
        [[2 * s - near(scores[q]) - near(scores[:, g]) for g, s in enumerate(row)] for q, row in enumerate(scores)]
    )


def hit_chance(rank, gallery, k, n, draws, rng):
    """How often a query of this rank among `gallery` is a hit at k among n random items with its own, by trial."""
    others = np.arange(1, gallery)  # those below `rank` beat the own item
    hits = [np.sum(rng.choice(others, n - 1, replace=False) < rank) < k for _ in range(draws)]
    return np.mean(hits)


def relevant_hit_chance(scores, relevant, own, k, n, draws, rng):
    """How often a relevant item is among the first k of the own row and n - 1 random others, by trial."""
    others = np.delete(np.arange(len(scores)), own)
    hits = 0
    for _ in range(draws):
        gallery = np.append(rng.choice(others, n - 1, replace=False), own)
        hits += relevant[gallery[np.argsort(-scores[gallery])][:k]].any()
    return hits / draws
