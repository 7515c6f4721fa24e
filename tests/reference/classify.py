"""Accuracy, F1 and neighbours counted one row at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np


def accuracy(truth, guess):
    return 100 * sum(t == g for t, g in zip(truth, guess, strict=True)) / len(truth)


def macro_f1(truth, guess):
    """Mean over the classes of the truth of the harmonic mean of precision and recall."""
    scores = []
    for c in set(truth):
        right = sum(t == g == c for t, g in zip(truth, guess, strict=True))
        precision = right / max(1, sum(g == c for g in guess))
        recall = right / sum(t == c for t in truth)
        scores.append(2 * precision * recall / (precision + recall) if right else 0.0)
    return 100 * sum(scores) / len(scores)


def vote(train, labels, query, k):
    """The most common label among the k nearest; the smallest of equally common ones."""
    order = sorted(range(len(train)), key=lambda i: float(np.sum((train[i] - query) ** 2)))[:k]
    votes = Counter(labels[i] for i in order)
    return min(label for label, number in votes.items() if number == max(votes.values()))


def mean_of_units(vectors):
    total = np.sum([v / np.linalg.norm(v) for v in vectors], axis=0)
    return total / np.linalg.norm(total)
