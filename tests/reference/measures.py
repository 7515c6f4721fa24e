"""The measures one row and one pair at a time, from lists and NumPy vectors."""

from __future__ import annotations

import math

import numpy as np


def unit(v):
    return v / np.linalg.norm(v)


def errors(filled, truth):
    """mse, nmse and mse_random over rows; the random other item is every other item in turn."""
    n, d = truth.shape
    middle = sum(truth) / n
    error = sum(float((f - t) @ (f - t)) for f, t in zip(filled, truth, strict=True))
    spread = sum(float((middle - t) @ (middle - t)) for t in truth)
    others = [float((truth[j] - truth[i]) @ (truth[j] - truth[i])) for i in range(n) for j in range(n) if i != j]
    return {"mse": error / (n * d), "nmse": error / spread, "mse_random": sum(others) / len(others) / d}


def gap(x, y):
    return float(np.linalg.norm(sum(map(unit, x)) / len(x) - sum(map(unit, y)) / len(y)))


def alignment(x, y):
    return sum(float(np.linalg.norm(unit(a) - unit(b)) ** 2) for a, b in zip(x, y, strict=True)) / len(x)


def uniformity(x):
    x = [unit(v) for v in x]
    near = [math.exp(-2 * float((a - b) @ (a - b))) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
    return math.log(sum(near) / len(near))


def anchor(vectors):
    u = np.linalg.svd(np.stack(vectors, axis=1))[0][:, 0]
    return u if u @ sum(vectors) >= 0 else -u


def shifts(whole, filled, present, renormalize):
    """Mean shift of the observed and of the completed part, over the rows (lists of vectors) that miss something."""
    before, after = [], []
    for real, made, there in zip(whole, filled, present, strict=True):
        if not all(there):
            if renormalize:
                real, made = [unit(v) for v in real], [unit(v) for v in made]
            u = anchor(real)
            before.append(np.linalg.norm(u - anchor([v for v, has in zip(real, there, strict=True) if has])))
            after.append(np.linalg.norm(u - anchor(made)))
    return sum(before) / len(before), sum(after) / len(after)


def covered(truth, mean, std, reach):
    """Percent of entries within `reach` deviations."""
    inside = [abs(t - m) <= reach * s for t, m, s in zip(truth, mean, std, strict=True)]
    return 100 * sum(inside) / len(inside)
