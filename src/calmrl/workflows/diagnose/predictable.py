"""How much of a modality can be predicted from others, on rows that the models did not see.

explained share = 1 - sum |z - guess|^2 / sum |z - mean|^2        1 is perfect, 0 is as good as the mean
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from calmrl.imputers.auto import AutoImputer
from calmrl.workflows.diagnose.models import FOLDS, Arrays, FoldedRows, Progress
from calmrl.workflows.diagnose.ridge import ridge

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
        progress("measuring every direction", step, len(asked))
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
