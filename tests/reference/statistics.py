"""Intervals and tests the slow way: one seed, one query, one draw at a time."""

from __future__ import annotations

import math
import random


def t_interval(values, quantile):
    """(mean, half) for the given quantile of Student's distribution."""
    n = len(values)
    mean = sum(values) / n
    variance = sum((x - mean) ** 2 for x in values) / (n - 1)
    return mean, quantile * math.sqrt(variance / n)


def bootstrap(ours, theirs, draws, seed):
    """Differences of means over seeds and queries, both drawn again with replacement."""
    rng = random.Random(seed)
    seeds, queries = range(len(ours)), range(len(ours[0]))
    found = []
    for _ in range(draws):
        these = [rng.choice(seeds) for _ in seeds]
        those = [rng.choice(queries) for _ in queries]
        gains = [ours[s][q] - theirs[s][q] for s in these for q in those]
        found.append(sum(gains) / len(gains))
    return found


def holm(p_values):
    """Reject the smallest p-value while it stays below alpha / (number left); the smallest alpha that rejects each."""
    names = sorted(p_values, key=p_values.get)
    return {
        name: min(1.0, max((len(names) - j) * p_values[other] for j, other in enumerate(names[: i + 1])))
        for i, name in enumerate(names)
    }
