"""Slow, obvious versions of what the diagnosis computes."""

from __future__ import annotations


def explained(truth, guess, middle):
    error = total = 0.0
    for row, guessed in zip(truth, guess, strict=True):
        for j in range(len(row)):
            error += (row[j] - guessed[j]) ** 2
            total += (row[j] - middle[j]) ** 2
    return 1 - error / total


def meeting(first, second):
    first, second = first - first.mean(axis=0), second - second.mean(axis=0)
    n = len(first)
    wins = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                own, mixed = float(first[i] @ second[i]), float(first[i] @ second[j])
                wins += 1.0 if own > mixed else 0.5 if own == mixed else 0.0
    return wins / (n * (n - 1))


def groups(present, least):
    """Columns tied together, by merging sets until nothing changes."""
    found = [{j} for j in range(present.shape[1])]
    for i in range(present.shape[1]):
        for j in range(i):
            if sum(1 for row in present if row[i] and row[j]) >= least:
                a = next(group for group in found if i in group)
                b = next(group for group in found if j in group)
                if a is not b:
                    found.remove(b)
                    a |= b
    return {frozenset(group) for group in found}
