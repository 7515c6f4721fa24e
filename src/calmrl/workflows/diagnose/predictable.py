"""How much of a modality can be predicted from others, on rows that the models did not see.

explained share = 1 - sum |z - guess|^2 / sum |z - mean|^2        1 is perfect, 0 is as good as the mean
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch.nn.functional import normalize

from calmrl.imputers.auto import AutoImputer
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.stacking import CANDIDATES
from calmrl.protocols import Progress

STRENGTHS = tuple(10.0**power for power in (-4, -3, -2, -1, 0, 1))
MOST_ROWS = 2000
LARGEST = 1e100  # of columns that were divided by a deviation of rounding errors only


def ridge(x: np.ndarray, y: np.ndarray, new: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Predictions for the rows `new`. A fifth of the rows chooses the strength; all of them (at most 2,000) then fit."""
    rows = rng.permutation(len(x))[:MOST_ROWS]
    x, y = x[rows], y[rows]
    cut = max(1, len(x) // 5)
    trials = _fits(x[cut:], y[cut:], x[:cut], STRENGTHS)
    best = int(np.argmin([np.square(guess - y[:cut]).sum() for guess in trials]))
    return _fits(x, y, new, STRENGTHS[best : best + 1])[0]


def _fits(x: np.ndarray, y: np.ndarray, new: np.ndarray, strengths: tuple[float, ...]) -> list[np.ndarray]:
    middle_x, middle_y = x.mean(axis=0), y.mean(axis=0)
    x, new = (x - middle_x).astype(np.float64), (new - middle_x).astype(np.float64)
    target = (y - middle_y).astype(np.float64)
    largest = max(float(np.abs(x).max(initial=0.0)), float(np.abs(new).max(initial=0.0)))
    if largest > LARGEST:
        x, new = x / largest, new / largest  # the same predictions; squares that a float holds
    dual = len(x) < x.shape[1]
    gram = x @ x.T if dual else x.T @ x
    unit = max(float(gram.trace()) / len(x), 1e-12)
    side, target = (new @ x.T, target) if dual else (new, x.T @ target)
    guesses = []
    for strength in strengths:
        factor = torch.linalg.cholesky(torch.from_numpy(gram + strength * unit * np.eye(len(gram))))
        guesses.append(side @ torch.cholesky_solve(torch.from_numpy(target), factor).numpy() + middle_y)
    return guesses


FOLDS = 3
SLOW = ("kernel", "mopoe")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class FoldedRows:
    """Rows in memory by the shared convention, and the fold in which each is tested."""

    z: Arrays
    present: np.ndarray
    fold: np.ndarray

    def __len__(self) -> int:
        return len(self.present)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.z)

    def part(self, rows: np.ndarray) -> FoldedRows:
        return FoldedRows({name: array[rows] for name, array in self.z.items()}, self.present[rows], self.fold[rows])


def deal(z: Arrays, present: np.ndarray, seed: int) -> FoldedRows:
    """Rows with a fold each, the same number of rows of every pattern in every fold (to within one)."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(present))
    pattern = np.unique(present[shuffled], axis=0, return_inverse=True)[1].reshape(-1)
    fold = np.empty(len(present), dtype=int)
    fold[shuffled[np.argsort(pattern, kind="stable")]] = np.arange(len(present)) % FOLDS
    return FoldedRows(z, present, fold)


def fit_folds(rows: FoldedRows, spaces: list[Arrays], model: Any, progress: Progress, what: str) -> list[Any]:
    """One model per fold, fitted on the rows of the other folds; its settings are those that the first fold chose.

    `spaces` holds the vectors of all rows, per fold; `model` is an imputer with `fit` and `refit`. `progress` says `what`,
    which fold, and where an imputer tries several candidates, which.
    """
    models: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is chosen, not reached
        for fold in range(FOLDS):
            train = rows.fold != fold
            z = {name: array[train] for name, array in spaces[fold].items()}
            text = f"{what}, fold {fold + 1} of {FOLDS}"
            progress(0, 0, text)
            if models:
                model = copy.copy(models[0]).refit(z, rows.present[train])
            elif isinstance(model, AutoImputer):
                model.fit(z, rows.present[train], partial(_candidate, progress, text))
            else:
                model.fit(z, rows.present[train])
            models.append(model)
    return models


def _candidate(progress: Progress, text: str, done: int, total: int, step: str) -> None:
    progress(done, total, f"{text}: {step}")


def imputer(seed: int) -> AutoImputer:
    """What `calmrl impute` uses by default, without its two slowest candidates: a diagnosis must not take minutes."""
    return AutoImputer([name for name in CANDIDATES if name not in SLOW], random_state=seed)


def aligner(seed: int) -> GaussianImputer:
    """A latent model whose posterior means find the other modalities of an item."""
    return GaussianImputer("auto", criterion="retrieval", whitening=0.0, random_state=seed)


def in_one_space(model: GaussianImputer | None, z: Arrays) -> Arrays:
    """Unit vectors of one width: as they are, or through the heads of a latent model (E[beta | this modality alone])."""
    heads = None if model is None else model.as_heads()
    with torch.no_grad():
        mapped = {
            name: torch.from_numpy(array) if heads is None else heads[name](torch.from_numpy(array))
            for name, array in z.items()
        }
        return {name: normalize(vectors, dim=1).numpy() for name, vectors in mapped.items()}


LEAST_ROWS = 10  # tested rows per fold, below which no number is given


@dataclass(frozen=True)
class Direction:
    """How well `target` is predicted from `sources`; `explained` and `ridge` are means over the folds."""

    target: str
    sources: tuple[str, ...]  # all others: each row gives those that it has
    explained: float  # by the imputer that `calmrl impute` would use
    spread: float  # standard deviation over the folds
    ridge: float  # by ridge regression
    n: int  # blocks that were hidden and guessed

    @property
    def nmse(self) -> float:
        return 1 - self.explained


def directions(rows: FoldedRows, models: list[AutoImputer], seed: int, progress: Progress) -> list[Direction]:
    """Every modality from all others, then from each single one; without those that too few rows have together."""
    measured = []
    asked = list(_asked(len(rows.names)))
    for step, (m, sources) in enumerate(asked):
        progress(step, len(asked), "measuring every direction")
        have = rows.present[:, m] & rows.present[:, sources].any(axis=1)
        per_fold = []
        for fold in range(FOLDS):
            train, test = rows.part(rows.fold != fold), rows.part(have & (rows.fold == fold))
            if len(test) < LEAST_ROWS or train.present[:, m].sum() < LEAST_ROWS:
                break
            seen = np.zeros_like(test.present)
            seen[:, sources] = test.present[:, sources]
            name = rows.names[m]
            truth, middle = test.z[name], train.z[name][train.present[:, m]].mean(axis=0)
            latent = np.asarray(models[fold].transform(test.z, seen)[name])
            simple = _ridge(train, test, m, sources, np.random.default_rng([seed, m, fold]))
            per_fold.append((share(truth, latent, middle), share(truth, simple, middle)))
        if len(per_fold) == FOLDS:
            latent_share, ridge_share = np.array(per_fold).T
            measured.append(
                Direction(
                    rows.names[m],
                    tuple(rows.names[j] for j in sources),
                    float(latent_share.mean()),
                    float(latent_share.std(ddof=1)),
                    float(ridge_share.mean()),
                    int(have.sum()),
                )
            )
    return measured


def _asked(k: int) -> Iterator[tuple[int, list[int]]]:
    for m in range(k):
        others = [j for j in range(k) if j != m]
        yield m, others
        if k > 2:
            yield from ((m, [j]) for j in others)


def share(truth: np.ndarray, guess: np.ndarray, middle: np.ndarray) -> float:
    """The explained share of these rows; `middle` is the mean to compare with.

    Rows that differ from it by rounding only are explained or not: 1 or 0.
    """
    total, error = (float(np.square(truth - other).sum(dtype=np.float64)) for other in (middle, guess))
    rounding = (4 * float(np.finfo(truth.dtype).eps)) ** 2 * float(np.square(truth, dtype=np.float64).sum())
    return 1 - error / total if total > rounding else float(error <= rounding)


def _ridge(train: FoldedRows, test: FoldedRows, m: int, sources: list[int], rng: np.random.Generator) -> np.ndarray:
    """One regression on all sources; a source that a row lacks is at its mean, and a column says so."""
    fit = train.present[:, m] & train.present[:, sources].any(axis=1)
    left: list[np.ndarray] = []
    right: list[np.ndarray] = []
    for j in sources:
        name, has = train.names[j], train.present[:, j]
        middle = train.z[name][has].mean(axis=0)
        scale = max(float(train.z[name][has].std()), np.finfo(float).tiny)
        for rows, columns in ((train.part(fit), left), (test, right)):
            here = rows.present[:, [j]]
            columns += [np.where(here, (rows.z[name] - middle) / scale, 0.0), here.astype(np.float32)]
    return ridge(np.hstack(left), train.z[train.names[m]][fit], np.hstack(right), rng)


def recoverable(
    rows: FoldedRows, models: list[AutoImputer], holes: list[tuple[np.ndarray, int]], measured: list[Direction]
) -> dict[str, tuple[float, int]]:
    """Modality -> (explained share of its missing blocks, their number), for the holes as they are.

    `holes` are the patterns of incomplete rows with their number of rows. Each missing modality of a pattern is guessed
    from what the pattern has, in test rows that have both; where these are too few, the share "from all others" stands.
    """
    whole = {d.target: d.explained for d in measured if len(d.sources) == len(rows.names) - 1}
    sums: dict[str, list[float]] = {name: [0.0, 0.0] for name in rows.names}
    for pattern, count in holes:
        for m in np.flatnonzero(~pattern):
            name = rows.names[m]
            explained = _in_pattern(rows, models, pattern, int(m))
            if explained is None:
                explained = whole.get(name)
            if explained is not None:
                sums[name][0] += count * explained
                sums[name][1] += count
    return {name: (total / count, int(count)) for name, (total, count) in sums.items() if count}


def _in_pattern(rows: FoldedRows, models: list[AutoImputer], pattern: np.ndarray, m: int) -> float | None:
    have = rows.present[:, pattern].all(axis=1) & rows.present[:, m]
    shares = []
    for fold in range(FOLDS):
        test = rows.part(have & (rows.fold == fold))
        if len(test) < LEAST_ROWS:
            return None
        name = rows.names[m]
        train = (rows.fold != fold) & rows.present[:, m]
        guess: Arrays = models[fold].transform(test.z, np.tile(pattern, (len(test), 1)))
        shares.append(share(test.z[name], guess[name], rows.z[name][train].mean(axis=0)))
    return float(np.mean(shares))
