"""What `AutoImputer` compares: candidates on hidden blocks, the weights of their average, and its calibrated deviations."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import nnls
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from calmrl._support.engine import Engine
from calmrl.arrays import Array, Views, check, to_tensor
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.kernel import KernelImputer, linked
from calmrl.imputers.registry import make_imputer
from calmrl.imputers.simple import MeanImputer
from calmrl.latent.choose import Ready
from calmrl.latent.held_out import normal_reach

CANDIDATES = ("gaussian", "kernel", "mopoe", "knowledge_bridger", "ridge", "knn", "mean")


@dataclass(frozen=True)
class Fitter:
    """Fits candidates by name: choosing their settings, or with those that were chosen before."""

    seed: int
    settled: dict[str, Any] = field(default_factory=dict)  # "gaussian", fitted, if its settings are chosen
    forms: dict[str, Any] | None = None  # of the kernel, by modality, if chosen
    plain: bool = False  # whether the search of `gaussian` leaves out whitened features, which cost most
    trials: Ready | None = None  # of such a search, for one that goes on from there
    stop: Callable[[Any], bool] | None = None  # ends the training of a network

    def fit(
        self,
        name: str,
        z: Mapping[str, Any],
        present: Tensor,
        fitted: Mapping[str, Any],
        engine: Engine | None = None,
    ) -> Any:
        """A candidate, fitted; `kernel` shares the latent model of `gaussian`, whose settings are chosen once."""
        mask: Array = present if isinstance(next(iter(z.values())), Tensor) else present.cpu().numpy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is chosen, not reached
            if name == "gaussian":
                return self._gaussian(z, mask, engine)
            if name == "kernel":
                shared = fitted.get("gaussian")
                if shared is None and linked(present):
                    shared = self._gaussian(z, mask, engine)
                if shared is None:
                    shared = MeanImputer().fit(z, mask)
                return KernelImputer(random_state=self.seed).fit_on(check(z, mask), shared, self.forms)
            ends = {} if self.stop is None else {"stop": self.stop}
            return make_imputer(name, self.seed).fit(z, mask, **ends)

    def _gaussian(self, z: Mapping[str, Any], mask: Array, engine: Engine | None) -> GaussianImputer:
        whitening: Any = 0.0 if self.plain else "auto"
        imputer = GaussianImputer("auto", "auto", "auto", random_state=self.seed, whitening=whitening)
        if "gaussian" in self.settled:
            return imputer.set_state(self.settled["gaussian"].get_state()).refit(z, mask)
        return imputer.fit_with(z, mask, engine, ready=self.trials)


@dataclass(frozen=True)
class Tried:
    """A candidate and what it says about rows of which blocks were hidden."""

    model: Any
    guess: list[np.ndarray]  # per modality, float64
    std: list[np.ndarray]
    seconds: float


def try_candidate(
    name: str, fitter: Fitter, rows: Views, asked: Tensor, fitted: Mapping[str, Any], engine: Engine | None = None
) -> Tried:
    """Fit on what `rows` have present, and guess the rest of the rows `asked`."""
    start = time.perf_counter()
    model = fitter.fit(name, dict(rows.arrays), rows.present, fitted, engine)
    guess, std = answers(model, rows, asked)
    return Tried(model, guess, std, time.perf_counter() - start)


def answers(model: Any, rows: Views, asked: Tensor) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(guesses, deviations) of the rows `asked`, per modality."""
    taken = rows.take(asked)
    guess, std = model.impute(dict(taken.arrays), taken.present, return_std=True)
    values, deviations = ([as_double(part[m]) for m in rows.names] for part in (guess, std))
    return values, deviations


def as_double(values: Array) -> np.ndarray:
    """As a float64 NumPy array."""
    return to_tensor(values).detach().double().cpu().numpy()


SHARE = 0.12  # of the observed blocks is hidden
FEWEST = 60  # blocks are hidden, where there are so many to spare
MARGIN = 0.003  # a further candidate has to lower the error by this share
SHARED = 20.0  # blocks: how much the weights of one modality lean on those of all


def hidden_blocks(present: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(N, k) bool: some observed blocks, hidden such that what is left of a row is a pattern that occurs in the data.

    Patterns of incomplete rows are drawn by their frequency; each is laid over a row drawn from those that have all of
    it and more. Where such rows run out, further rows with two modalities or more lose one at random. At least half of the
    rows with two modalities or more stay as they are: they are all that the candidates can learn from.
    """
    spare = int((present.sum(axis=1) > 1).sum()) // 2
    patterns, counts = np.unique(present, axis=0, return_counts=True)
    incomplete = ~patterns.all(axis=1)
    patterns, counts = patterns[incomplete], counts[incomplete]
    rows = [
        list(rng.permutation(np.flatnonzero(present[:, left].all(axis=1) & present[:, ~left].any(axis=1))))
        for left in patterns
    ]
    wanted = max(SHARE * present.sum(), min(FEWEST, 0.3 * present.sum()))
    hidden = np.zeros_like(present)
    while hidden.sum() < wanted and hidden.any(axis=1).sum() < spare and any(rows):
        p = rng.choice(len(patterns), p=counts / counts.sum())
        while rows[p]:
            i = rows[p].pop()
            if not hidden[i].any():
                hidden[i] = present[i] & ~patterns[p]
                break
    for i in rng.permutation(np.flatnonzero((present.sum(axis=1) > 1) & ~hidden.any(axis=1))):
        if hidden.sum() >= wanted or hidden.any(axis=1).sum() >= spare:
            break
        hidden[i, rng.choice(np.flatnonzero(present[i]))] = True
    return hidden


@dataclass
class Guesses:
    """What one candidate said of the hidden blocks: per modality residuals and deviations, (blocks, d_m) each."""

    residuals: list[np.ndarray]
    deviations: list[np.ndarray]


@dataclass
class Weights:
    """The chosen candidates and their weights per modality, (chosen, k)."""

    chosen: list[str]
    weight: np.ndarray
    error: float  # of the weighted average on the hidden blocks


class Stack:
    """The candidates' guesses of the hidden blocks, and what follows from them."""

    def __init__(self, totals: list[float], blocks: list[int], widths: Sequence[int]) -> None:
        self.totals = totals  # squared deviation of the hidden blocks from the column means, per modality
        self.blocks = blocks  # hidden blocks per modality
        # a modality counts by its number of values, whatever its unit; one that does not vary does not count
        entries = [n * d if t > 0 else 0 for n, d, t in zip(blocks, widths, totals, strict=True)]
        self.share = [
            e / sum(entries) / t if e else 0.0 for e, t in zip(entries, totals, strict=True)
        ]  # factor on a squared error, so that the column means have 1.0 in sum
        self.guesses: dict[str, Guesses] = {}

    def errors(self, name: str) -> list[float | None]:
        """Normalised error per modality (1.0 is the column mean); None where nothing hidden varies."""
        wrong = [float(np.square(r).sum()) for r in self.guesses[name].residuals]
        return [w / t if t > 0 else None for w, t in zip(wrong, self.totals, strict=True)]

    def error(self, name: str) -> float:
        return sum(
            share * float(np.square(r).sum()) for share, r in zip(self.share, self.guesses[name].residuals, strict=True)
        )

    def weigh(self) -> Weights:
        """Start with the best candidate; add the one that lowers the error of the average most, while it does."""
        names = list(self.guesses)
        grams = self._grams(names)
        chosen = [min(range(len(names)), key=lambda c: self.error(names[c]))]
        weight, error = self._solve(grams, chosen)
        while len(chosen) < len(names):
            trials = [[*chosen, c] for c in range(len(names)) if c not in chosen]
            solved = [(self._solve(grams, trial), trial) for trial in trials]
            (best_weight, best_error), best = min(solved, key=lambda entry: entry[0][1])
            if best_error > (1 - MARGIN) * error:
                break
            chosen, weight, error = best, best_weight, best_error
        return Weights([names[c] for c in chosen], weight, error)

    def _grams(self, names: list[str]) -> np.ndarray:
        """(k, C, C): inner products of the candidates' residuals per modality, such that they add up to errors."""
        grams = []
        for m, share in enumerate(self.share):
            flat = np.stack([self.guesses[name].residuals[m].ravel() for name in names])
            grams.append(share * (flat @ flat.T))
        return np.array(grams)

    def _solve(self, grams: np.ndarray, chosen: list[int]) -> tuple[np.ndarray, float]:
        """(weights (chosen, k), error): per modality, leaning on all modalities with SHARED blocks."""
        part = grams[np.ix_(range(len(grams)), chosen, chosen)]
        pooled = part.sum(axis=0) / sum(self.blocks)  # per block
        columns = [simplex_weights(gram + SHARED * pooled) for gram in part]
        wrong = sum(float(w @ gram @ w) for w, gram in zip(columns, part, strict=True))
        return np.stack(columns, axis=1), wrong

    def averaged_errors(self, weights: Weights) -> list[float | None]:
        """Normalised error of the weighted average per modality (1.0 is the column mean); None where nothing varies."""
        errors: list[float | None] = []
        for m, total in enumerate(self.totals):
            residuals = np.stack([self.guesses[name].residuals[m] for name in weights.chosen])
            wrong = float(np.square(np.tensordot(weights.weight[:, m], residuals, axes=1)).sum())
            errors.append(wrong / total if total > 0 else None)
        return errors

    def scores(self, weights: Weights) -> list[np.ndarray]:
        """Per modality |error| / deviation of the average, (blocks, d_m).

        Weights make the errors of the blocks that they were fitted on too small, so the errors of either half of the
        blocks are those with weights from the other half.
        """
        mine = [self.guesses[name] for name in weights.chosen]
        pooled = self._grams(weights.chosen).sum(axis=0) / sum(self.blocks)
        scores = []
        for m, share in enumerate(self.share):
            residuals = np.stack([g.residuals[m] for g in mine])  # (chosen, blocks, d)
            variances = np.stack([g.deviations[m] for g in mine]) ** 2
            error = np.empty(residuals.shape[1:])
            for half in (0, 1):
                other = residuals[:, 1 - half :: 2].reshape(len(mine), -1)
                weight = simplex_weights(share * (other @ other.T) + SHARED * pooled)
                error[half::2] = np.tensordot(weight, residuals[:, half::2], axes=1)
            variance = np.tensordot(weights.weight[:, m], variances, axes=1)
            scores.append(np.abs(error) / np.sqrt(np.maximum(variance, np.finfo(float).tiny)))
        return scores


def simplex_weights(gram: np.ndarray) -> np.ndarray:
    """argmin w^T gram w over w >= 0, sum w = 1."""
    size = max(float(np.trace(gram)), np.finfo(float).tiny)
    values, vectors = np.linalg.eigh(gram / size)
    root = (vectors * np.sqrt(np.clip(values, 0, None) + 1e-12)) @ vectors.T
    heavy = 1e3
    weight, _ = nnls(np.vstack([root, np.full((1, len(gram)), heavy)]), np.append(np.zeros(len(gram)), heavy))
    return np.asarray(weight / weight.sum())


# ---- deviations whose intervals cover as many held-out values as they claim
#
# Factors are per modality and per number of observed modalities, lean on each other where there are few blocks, and are carried
# from the fit that was checked to the final one.

TINY = np.finfo(float).tiny
SHRINK = 20.0  # blocks: how much the factor of one number of modalities leans on that of all


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
    alike = [scores[m] / max(float(np.nanquantile(scores[m], level)), TINY) for m in filled]
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
    return max(float(np.nanquantile(score, level)), TINY) ** (blocks / (blocks + SHRINK)) if some else 1.0


def _of_modality(
    score: np.ndarray, count: np.ndarray, missing: np.ndarray, shared: np.ndarray, level: float
) -> np.ndarray:
    growth, weight = shared.copy(), np.ones(len(score))
    even = score / shared[count][:, None]
    even = even / max(float(np.nanquantile(even, level)), TINY)
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
