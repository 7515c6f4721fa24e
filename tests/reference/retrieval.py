"""Retrieval the slow way: sort, and try every order of tied items."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from statistics import median


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
