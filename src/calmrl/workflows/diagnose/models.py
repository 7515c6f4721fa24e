"""The models of the diagnosis: chosen once, fitted once per fold, on rows that are not tested."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch.nn.functional import normalize

from calmrl.imputers.auto import AutoImputer, Progress
from calmrl.imputers.candidates import CANDIDATES
from calmrl.imputers.gaussian import GaussianImputer

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
            progress(text, 0, 0)
            if models:
                model = copy.copy(models[0]).refit(z, rows.present[train])
            elif isinstance(model, AutoImputer):
                model.fit(z, rows.present[train], partial(_candidate, progress, text))
            else:
                model.fit(z, rows.present[train])
            models.append(model)
    return models


def _candidate(progress: Progress, text: str, step: str, done: int, total: int) -> None:
    progress(f"{text}: {step}", done, total)


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
