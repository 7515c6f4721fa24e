"""The latent models of the diagnosis: sizes chosen once, fitted once per fold, on rows that are not tested."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch.nn.functional import normalize

from calmrl.imputers.gaussian import GaussianImputer

FOLDS = 3
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


def fit_folds(rows: FoldedRows, spaces: list[Arrays], criterion: str, seed: int) -> list[GaussianImputer]:
    """One model per fold, fitted on the rows of the other folds; the sizes are those that the first fold chose.

    `spaces` holds the vectors of all rows, per fold.
    """
    models: list[GaussianImputer] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of iterations is chosen, not reached
        for fold in range(FOLDS):
            train = rows.fold != fold
            if models:
                chosen = models[0].settings_
                model = GaussianImputer(
                    chosen.latent_dim,
                    noise=chosen.noise,  # type: ignore[arg-type]
                    prior=chosen.prior,
                    max_iter=chosen.iterations or 200,
                    tol=0.0,
                    random_state=seed,
                )
            else:
                model = GaussianImputer("auto", criterion=criterion, random_state=seed)  # type: ignore[arg-type]
            z = {name: array[train] for name, array in spaces[fold].items()}
            models.append(model.fit(z, rows.present[train]))
    return models


def in_one_space(model: GaussianImputer | None, z: Arrays) -> Arrays:
    """Unit vectors of one width: as they are, or through the heads of a latent model (E[beta | this modality alone])."""
    heads = None if model is None else model.as_heads()
    with torch.no_grad():
        mapped = {
            name: torch.from_numpy(array) if heads is None else heads[name](torch.from_numpy(array))
            for name, array in z.items()
        }
        return {name: normalize(vectors, dim=1).numpy() for name, vectors in mapped.items()}
