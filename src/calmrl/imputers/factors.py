"""What the latents of a `GaussianImputer` stand for: turned to simple structure, with loadings by name and variance explained.

The model says the same of the data whatever orthogonal matrix R turns the latents: b' = R^T b, W' = W R. Varimax chooses
the R with which each column of the data loads on few latents, modalities counting alike; then latents are ordered by how much
they explain. Latent l explains of modality m, over the entries that were observed,

    R2_ml = 1 - sum (z - mu - W_l b_l)^2 / sum (z - mu)^2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calmrl._support.arguments import check_choice
from calmrl.arrays import Array
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.interop.containers import from_object, is_container
from calmrl.latent.predict import need_one_component

ROTATIONS = ("varimax", "none")


@dataclass(frozen=True)
class Factors:
    """Latents of rows, and what they stand for.

    Attributes
    ----------
    latents : array (N, L)
        Posterior means, most explaining first.
    loadings : dict of str to array (d, L)
    columns : dict of str to list of str
        Names of the columns of each modality.
    explained : dict of str to array (L,)
        Share of a modality's variance that each latent explains.
    explained_by_all : dict of str to float
        The share that all of them explain together.
    """

    latents: np.ndarray
    loadings: dict[str, np.ndarray]
    columns: dict[str, list[str]]
    explained: dict[str, np.ndarray]
    explained_by_all: dict[str, float]

    def top(self, latent: int, modality: str, n: int = 10) -> list[tuple[str, float]]:
        """(column, loading) of the columns that load most on a latent, in either direction; latents count from 0."""
        if modality not in self.loadings:
            raise InputError(f"unknown modality {modality!r}; there are {', '.join(self.loadings)}")
        size = self.latents.shape[1]
        if not 0 <= latent < size:
            raise InputError(f"latent must be a number from 0 to {size - 1}; got {latent}")
        loading = self.loadings[modality][:, latent]
        order = np.argsort(-np.abs(loading), kind="stable")[:n]
        return [(self.columns[modality][j], float(loading[j])) for j in order]


def latent_factors(
    imputer: GaussianImputer,
    z: Any,
    present: Array | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    rotation: str = "varimax",
) -> Factors:
    """The latents of rows as factors: turned, ordered, with loadings and variance explained.

    Parameters
    ----------
    imputer : GaussianImputer
        Fitted, with one component.
    z, present
        As in `imputer.embed`: a dict, MuData, a frame, ...
    columns : mapping of str to sequence of str, optional
        Names of the columns; by default `var_names` of a MuData, else numbers.
    rotation : {"varimax", "none"}
        "none" leaves the latents as they were fitted, in whatever direction.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> cause = rng.normal(size=(200, 2))
    >>> z = {"gene": np.repeat(cause, 3, axis=1) + 0.1 * rng.normal(size=(200, 6)), "drug": cause[:, :1] * np.ones(4)}
    >>> factors = latent_factors(GaussianImputer(2).fit(z), z)
    >>> sorted(name for name, _ in factors.top(0, "gene", 3))
    ['0', '1', '2']
    >>> factors.explained["drug"].round(2).tolist()
    [1.0, 0.0]
    """
    check_choice("rotation", rotation, ROTATIONS)
    need_one_component(imputer.parameters_, "latent_factors")
    if is_container(z):
        if columns is None and hasattr(z, "mod"):
            columns = {name: [str(column) for column in adata.var_names] for name, adata in z.mod.items()}
        features = from_object(z, holes=True)
        z, present = features.z, np.asarray(features.present)
    latents = np.asarray(imputer.embed(z, present), dtype=float)
    W = {name: np.asarray(part, dtype=float) for name, part in imputer.W_.items()}
    mu = {name: np.asarray(part, dtype=float) for name, part in imputer.mu_.items()}
    centred = {name: _centred(z, present, name, mu[name]) for name in W if name in z}
    if rotation == "varimax":
        size = {name: np.sqrt(max(np.nansum(block**2) / len(block), 1e-300)) for name, block in centred.items()}
        turn = varimax(np.concatenate([W[name] / size[name] for name in centred]))
        latents, W = latents @ turn, {name: part @ turn for name, part in W.items()}
    explained = {name: _explained(block, latents, W[name]) for name, block in centred.items()}
    order = np.argsort(-np.sum(list(explained.values()), axis=0), kind="stable")
    sign = np.where(sum((part**3).sum(axis=0) / np.abs(part**3).sum() for part in W.values())[order] < 0, -1.0, 1.0)
    named = columns or {}
    return Factors(
        latents[:, order] * sign,
        {name: part[:, order] * sign for name, part in W.items()},
        {name: list(named.get(name, map(str, range(len(part))))) for name, part in W.items()},
        {name: share[order] for name, share in explained.items()},
        {name: _share(block, latents @ W[name].T) for name, block in centred.items()},
    )


def varimax(loadings: np.ndarray, iterations: int = 500, tol: float = 1e-8) -> np.ndarray:
    """(L, L) the orthogonal matrix after which the squares of each column's loadings vary most (Kaiser, 1958)."""
    turn = np.eye(loadings.shape[1])
    reached = 0.0
    for _ in range(iterations):
        turned = loadings @ turn
        target = turned**3 - turned * (turned**2).mean(axis=0)
        left, values, right = np.linalg.svd(loadings.T @ target)
        turn = left @ right
        if values.sum() <= reached * (1 + tol):
            break
        reached = values.sum()
    return np.asarray(turn)


def _centred(z: Any, present: Array | None, name: str, mu: np.ndarray) -> np.ndarray:
    """Values of a modality less their mean, NaN where nothing was observed."""
    values = np.asarray(z[name], dtype=float) - mu
    if present is None:
        return np.asarray(values)
    return np.where(np.asarray(present)[:, [list(z).index(name)]], values, np.nan)


def _explained(block: np.ndarray, latents: np.ndarray, W: np.ndarray) -> np.ndarray:
    """(L,) what each latent explains by itself."""
    return np.array([_share(block, np.outer(latents[:, j], W[:, j])) for j in range(W.shape[1])])


def _share(block: np.ndarray, said: np.ndarray) -> float:
    total = np.nansum(block**2)
    return float(1 - np.nansum((block - said) ** 2) / total) if total > 0 else 0.0
