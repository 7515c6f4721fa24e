"""Calibrated deviations: factors with which predictive intervals cover as many held-out values as they claim.

An interval is checked on blocks that were hidden from a fit. Factors are per modality and per number of observed modalities,
lean on each other where there are few blocks, and are carried from the fit that was checked to the final one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calmrl.latent.held_out import normal_reach

TINY = np.finfo(float).tiny
TOO_LOW, TOO_HIGH = 90.0, 98.0  # percent inside the 95 % interval that are still called right
SHRINK = 20.0  # blocks: how much the factor of one number of modalities leans on that of all


def coverage_fault(covered: float) -> str | None:
    """What is wrong with 95 % intervals that hold so many percent of the true values; None if nothing is."""
    if TOO_LOW <= covered <= TOO_HIGH:
        return None
    return "too narrow" if covered < TOO_LOW else "too wide"


def missing_counts(present: np.ndarray) -> np.ndarray:
    """(k + 1, k): how many rows with s observed modalities lack modality m."""
    k = present.shape[1]
    counts = np.zeros((k + 1, k), dtype=int)
    np.add.at(counts, present.sum(axis=1), ~present)
    return counts


def factors(
    scores: Sequence[np.ndarray], sources: Sequence[np.ndarray], missing: np.ndarray, level: float = 0.9
) -> np.ndarray:
    """(k + 1, k): the factor on the deviations of modality m in rows with s observed modalities.

    Parameters
    ----------
    scores : list of arrays (blocks, d_m)
        |error| / deviation of the held-out blocks, per modality; NaN where the truth is not known.
    sources : list of arrays (blocks,)
        How many modalities were observed in the row of each block.
    missing : array (k + 1, k)
        See `missing_counts`: what the factors are for.
    level : float
        What the intervals shall cover.

    Returns
    -------
    array (k + 1, k)
    """
    factor = np.ones(missing.shape)
    filled = [m for m, score in enumerate(scores) if score.size and not np.isnan(score).all()]
    alike = [scores[m] / max(_level(scores[m], level), TINY) for m in filled]
    shared = np.ones(len(missing))
    for s in range(len(missing)):
        own = [score[sources[m] == s] for m, score in zip(filled, alike, strict=True)]
        shared[s] = _lean(np.concatenate([part.ravel() for part in own]), sum(map(len, own)), level)
    for m in filled:
        factor[:, m] = _of_modality(scores[m], sources[m], missing[:, m], shared, level)
    return factor


def _lean(score: np.ndarray, blocks: int, level: float) -> float:
    """The quantile of scores that have quantile 1 on the whole, nearer to 1 the fewer the blocks."""
    some = blocks and not np.isnan(score).all()
    return max(_level(score, level), TINY) ** (blocks / (blocks + SHRINK)) if some else 1.0


def _level(score: np.ndarray, level: float) -> float:
    """The quantile of the scores that are known."""
    return float(np.quantile(score[~np.isnan(score)], level))


def _of_modality(
    score: np.ndarray, count: np.ndarray, missing: np.ndarray, shared: np.ndarray, level: float
) -> np.ndarray:
    growth, weight = shared.copy(), np.ones(len(score))
    even = score / shared[count][:, None]
    even = even / max(_level(even, level), TINY)
    for s in np.unique(count):
        own = count == s
        growth[s] *= _lean(even[own], int(own.sum()), level)
        weight[own] = missing[s] / own.sum()
    if not weight.any():  # nothing is missing where something was held out: the held-out blocks stand for themselves
        weight[:] = 1.0
    even = score / growth[count][:, None]
    return growth * _quantile(even.ravel(), np.repeat(weight, score.shape[1]), level) / normal_reach(level)


def _quantile(values: np.ndarray, weight: np.ndarray, level: float) -> float:
    """The smallest value at or below which lies `level` of the weight."""
    known = ~np.isnan(values)
    values, weight = values[known], weight[known]
    order = np.argsort(values)
    reached = np.cumsum(weight[order])
    return float(values[order[np.searchsorted(reached, level * reached[-1])]])


def levels(trial: Sequence[np.ndarray], final: Sequence[np.ndarray], sources: Sequence[np.ndarray]) -> np.ndarray:
    """(k + 1, k): how much larger the deviations of the trial fit are than those of the final one, as medians of the ratio.

    The final fit has seen the held-out blocks, so nothing is left to check its deviations with. Those of the trial fit
    were checked: times this, the final deviations are as large. Medians, because a column that hardly varies may seem
    constant to the trial fit.

    Parameters
    ----------
    trial, final : lists of arrays (blocks, d_m)
        Deviations of the same missing blocks.
    sources : list of arrays (blocks,)
        How many modalities were observed in the row of each block.

    Returns
    -------
    array (k + 1, k)
    """
    k = len(trial)
    ratio = np.ones((k + 1, k))
    for m, (before, after, count) in enumerate(zip(trial, final, sources, strict=True)):
        if before.size:
            gap = np.log(np.maximum(before, TINY)) - np.log(np.maximum(after, TINY))
            pooled = float(np.median(gap))
            for s in np.unique(count):
                n = int((count == s).sum())
                ratio[s, m] = np.exp((n * np.median(gap[count == s]) + SHRINK * pooled) / (n + SHRINK))
            ratio[np.setdiff1d(np.arange(k + 1), count), m] = np.exp(pooled)
    return ratio
