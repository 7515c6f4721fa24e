"""How far missing modalities move the anchors of items, before and after imputing.

In rows with known modalities, some are hidden as they are missing elsewhere in the data. With u the anchor of the whole
row, shift before = |u - u(what is left)|, shift after = |u - u(what is left + what is imputed)|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calmrl.anchors import anchor
from calmrl.data.hiding import hide
from calmrl.imputers.auto import AutoImputer
from calmrl.workflows.diagnose.models import FOLDS, Arrays, FoldedRows

ENOUGH = 60  # complete rows; with fewer, rows with two modalities or more are tested as well


@dataclass(frozen=True)
class Shift:
    """Mean shift of the anchors of tested rows, and its standard deviation over the folds."""

    before: float
    before_spread: float
    after: float
    after_spread: float
    mean: float  # after imputing the mean of each modality
    nearer: float  # share of rows whose anchor comes closer
    n: int
    complete: bool  # whether only complete rows were tested

    @property
    def reduction(self) -> float:
        """Relative: 1 is all of the shift, 0 is nothing."""
        return 1 - self.after / self.before if self.before > 0 else 0.0


def anchor_shifts(
    rows: FoldedRows,
    spaces: list[Arrays],
    models: list[AutoImputer],
    holes: list[tuple[np.ndarray, int]],
    seed: int,
) -> Shift | None:
    """Test rows lose what the patterns in `holes` lack (drawn by their frequency; one at random if there are none)."""
    held = rows.present.sum(axis=1)
    complete = held == rows.present.shape[1]
    only_complete = int(complete.sum()) >= ENOUGH
    usable = complete if only_complete else held > 1
    results: list[np.ndarray] = []
    for fold in range(FOLDS):
        here = np.flatnonzero(usable & (rows.fold == fold))
        if len(here) < 2:
            return None
        z = {name: array[here] for name, array in spaces[fold].items()}
        has = rows.present[here]
        left = punch(has, holes, np.random.default_rng([seed, fold]))
        trained = rows.fold != fold
        middle = {
            name: np.where(left[:, [j]], z[name], array[trained & rows.present[:, j]].mean(axis=0))
            for j, (name, array) in enumerate(spaces[fold].items())
        }
        whole = anchor(z, has)
        results.append(
            np.stack(
                [
                    np.linalg.norm(whole - anchor(z, left), axis=1),
                    np.linalg.norm(whole - anchor(models[fold].transform(z, left), has), axis=1),
                    np.linalg.norm(whole - anchor(middle, has), axis=1),
                ]
            )
        )
    means = np.array([shifts.mean(axis=1) for shifts in results])  # (folds, 3)
    every = np.concatenate(results, axis=1)
    return Shift(
        before=float(means[:, 0].mean()),
        before_spread=float(means[:, 0].std(ddof=1)),
        after=float(means[:, 1].mean()),
        after_spread=float(means[:, 1].std(ddof=1)),
        mean=float(means[:, 2].mean()),
        nearer=float((every[1] < every[0]).mean()),
        n=every.shape[1],
        complete=only_complete,
    )


def punch(has: np.ndarray, holes: list[tuple[np.ndarray, int]], rng: np.random.Generator) -> np.ndarray:
    """What is left of each row after a pattern of `holes` is laid over it; a row that this would leave whole or empty
    loses one modality at random instead."""
    left = hide(has, 1.0, rng, kind="one")
    if holes:
        patterns = np.array([pattern for pattern, _ in holes])
        weights = np.array([count for _, count in holes], dtype=float)
        cut = has & patterns[rng.choice(len(patterns), len(has), p=weights / weights.sum())]
        fits = cut.any(axis=1) & (cut != has).any(axis=1)
        left = np.where(fits[:, None], cut, left)
    return left
