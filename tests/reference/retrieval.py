"""Retrieval the slow way: sort, and try every order of tied items."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, permutations
from statistics import median

import numpy as np


def by_scores(scores, query_ids, gallery_ids, ks):
    """The metrics from a list of rows of scores that compare exactly."""
    hits, ranks = {k: [] for k in ks}, []
    for row, mine in zip(scores, query_ids, strict=True):
        own = [name == mine for name in gallery_ids]
        best = max(score for score, is_own in zip(row, own, strict=True) if is_own)
        before = sum(score > best for score in row)
        level = [is_own for score, is_own in zip(row, own, strict=True) if score == best]
        orders = [before + 1 + order.index(True) for order in permutations(level)]
        ranks.append(Fraction(sum(orders), len(orders)))
        for k in ks:
            hits[k].append(Fraction(sum(rank <= k for rank in orders), len(orders)))
    n = len(ranks)
    return {**{f"R@{k}": float(100 * sum(hits[k]) / n) for k in ks}, "MedR": float(median(ranks)), "n": n}


def signed_square_cosines(queries, gallery):
    """Rows of sign(q . g) (q . g)^2 / |g|^2 for whole-number vectors: the order of the cosines, without rounding."""

    def dot(a, b):
        return sum(int(x) * int(y) for x, y in zip(a, b, strict=True))

    return [[Fraction(dot(q, g) * abs(dot(q, g)), dot(g, g)) for g in gallery] for q in queries]


def inner_products(queries, gallery):
    return [[sum(int(x) * int(y) for x, y in zip(q, g, strict=True)) for g in gallery] for q in queries]


def scored(queries, items, score):
    """Rows of scores of unit queries with items, each a list of unit vectors; one query, one item at a time."""

    def one(q, vectors):
        if score == "cosine":
            total = np.sum(vectors, axis=0)
            return q @ total / np.linalg.norm(total)
        if score == "anchor":
            u = np.linalg.svd(np.stack(vectors, axis=1))[0][:, 0]
            return q @ u if u @ np.sum(vectors, axis=0) >= 0 else -(q @ u)
        if score == "volume":
            m = np.stack([q, *vectors])
            volume = math.sqrt(max(np.linalg.det(m @ m.T), 0.0))
            return -(2 - volume) if len(vectors) == 1 and q @ vectors[0] < 0 else -volume
        if len(vectors) == 1:
            return q @ vectors[0]
        areas = []
        for x, y in combinations(vectors, 2):
            a, b, c = (np.linalg.norm(side) for side in (q - x, q - y, x - y))
            s = (a + b + c) / 2  # Heron
            areas.append(math.sqrt(max(s * (s - a) * (s - b) * (s - c), 0.0)))
        return -sum(areas) / len(areas)

    return [[one(q, vectors) for vectors in items] for q in queries]


def slow_close_levels(best, keys, share):
    """Levels of what is close, by counting: each query has the best rank of its columns, and the k-th smallest sets all."""
    n = len(best)
    k = int(share * 0.1 * (n + 1) + 1e-9)
    if not k:
        return {}
    rank = [[1 + sum(other[p] > row[p] for other in best) for p in range(len(keys))] for row in best]
    at = sorted(min(ranks) for ranks in rank)[k - 1]
    levels = {key: sorted((row[p] for row in best), reverse=True)[at - 1] for p, key in enumerate(keys)}
    return {key: level for key, level in levels.items() if level > float("-inf")}
