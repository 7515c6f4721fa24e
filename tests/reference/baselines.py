"""Slow, obvious twins of the baselines, in NumPy and SciPy."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh, sqrtm


def with_ridge(covariance: np.ndarray, ridge: float) -> np.ndarray:
    return covariance + ridge * np.trace(covariance) / len(covariance) * np.eye(len(covariance))


def cov(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return sum(np.outer(a, b) for a, b in zip(x - x.mean(0), y - y.mean(0), strict=True)) / len(x)


def cca(x: np.ndarray, y: np.ndarray, ridge: float, r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(A, B, rho): the generalised eigenproblem of [[0, C_xy], [C_yx, 0]] and [[C_xx, 0], [0, C_yy]], with ridge."""
    d = x.shape[1]
    zero = np.zeros((d, d)), np.zeros((y.shape[1], y.shape[1]))
    left = np.block([[zero[0], cov(x, y)], [cov(y, x), zero[1]]])
    inside = with_ridge(cov(x, x), ridge), with_ridge(cov(y, y), ridge)
    right = np.block([[inside[0], zero[0][:, :1] @ zero[1][:1]], [zero[1][:, :1] @ zero[0][:1], inside[1]]])
    values, vectors = eigh(left, right)
    first = vectors[:, ::-1][:, :r] * np.sqrt(2)
    return first[:d], first[d:], values[::-1][:r]


def csa(x, y, ridge, r, queries, gallery) -> np.ndarray:
    """(Q, G): sum_i rho_i u_i v_i, u and v of unit length, item by item."""
    a, b, rho = cca(x, y, ridge, r)
    scores = np.zeros((len(queries), len(gallery)))
    for i, q in enumerate(queries):
        for j, g in enumerate(gallery):
            u, v = (q - x.mean(0)) @ a, (g - y.mean(0)) @ b
            scores[i, j] = sum(rho * (u / np.linalg.norm(u)) * (v / np.linalg.norm(v)))
    return scores


def mcca(x: list[np.ndarray], present: np.ndarray, ridge: float, r: int) -> list[np.ndarray]:
    """Weighted directions of each modality: S v = lambda D v."""
    k, edges = len(x), np.cumsum([0, *(side.shape[1] for side in x)])
    s, d = np.zeros((edges[-1], edges[-1])), np.zeros((edges[-1], edges[-1]))
    for a in range(k):
        for b in range(k):
            rows = present[:, a] & present[:, b]
            block = slice(edges[a], edges[a + 1]), slice(edges[b], edges[b + 1])
            s[block] = cov(x[a][rows], x[b][rows]) if rows.any() else 0
            if a == b:
                d[block] = with_ridge(s[block], ridge)
    values, vectors = eigh(s, d)
    values, vectors = values[::-1][:r], vectors[:, ::-1][:, :r]
    vectors, values = vectors[:, values > 1], values[values > 1]
    return [vectors[edges[m] : edges[m + 1]] * ((values - 1) / (k - 1)) ** 0.25 for m in range(k)]


def gcca(x: list[np.ndarray], present: np.ndarray, ridge: float, r: int) -> list[np.ndarray]:
    """U_m, with masks and all rows written out."""
    x = [side - side[present[:, m]].mean(0) for m, side in enumerate(x)]
    masks = [np.diag(present[:, m].astype(float)) for m in range(len(x))]
    inside = []
    for side, mask in zip(x, masks, strict=True):
        inside.append(with_ridge(side.T @ mask @ side, ridge))
    parts = [m @ side @ np.linalg.inv(sqrtm(c).real) for side, m, c in zip(x, masks, inside, strict=True)]
    scale = np.linalg.inv(sqrtm(sum(masks)).real)
    left = np.linalg.svd(scale @ np.hstack(parts))[0][:, :r]
    g = scale @ left
    return [np.linalg.inv(c) @ side.T @ mask @ g for side, mask, c in zip(x, masks, inside, strict=True)]


def asif(queries, gallery, anchors, nearest: int, power: float) -> np.ndarray:
    """(Q, G) of two modalities; `anchors` are both sides of the rows that have both."""

    def numbers(items, side):
        out = []
        for item in items:
            cosines = np.array([item @ one / np.linalg.norm(item) / np.linalg.norm(one) for one in side])
            least = np.sort(cosines)[::-1][min(nearest, len(side)) - 1]
            kept = np.array([max(c, 0) ** power if c >= least else 0.0 for c in cosines])
            out.append(kept / np.linalg.norm(kept))
        return np.array(out)

    return numbers(queries, anchors[0]) @ numbers(gallery, anchors[1]).T
