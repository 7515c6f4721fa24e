"""Canonical correlation analysis from incomplete rows: each pair by itself, several sets by covariances, and MAXVAR."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.arguments import Count, NotNegative
from calmrl._support.linalg import numpy_eigh
from calmrl.aligner.features import RANK
from calmrl.baselines.base import Baseline, OneSpace, Pairwise, TrainingFeatures, covariance, inverse_root
from calmrl.baselines.maps import Linear, compose, regress


@dataclass(eq=False, repr=False)
class _Correlation(Baseline):
    """The arguments that all of them have."""

    ridge: NotNegative = 1.0
    directions: Count = 256


class CCA(_Correlation, Pairwise):
    """Canonical correlation analysis of every pair of modalities on the rows that have both (CSA).

    With the covariances C of the features of these rows and ridge s^2 (s^2 the mean variance), the singular vectors of

        (C_aa + ridge s_a^2 I)^(-1/2) C_ab (C_bb + ridge s_b^2 I)^(-1/2)

    give canonical directions and correlations rho_1 >= rho_2 >= ... With u and v the coordinates of two items on the first
    r of them, each scaled to unit length, the similarity is sum_i rho_i u_i v_i. `similarity` is this over k - 1.

    Where fewer than two rows have both a and b, a is mapped by ridge regression to a modality that shares rows with b, and
    compared with b there. An item with several modalities has the sum of their vectors, and so of their cosines.

    Parameters
    ----------
    ridge : float
        Added to the variances, in units of their mean.
    directions : int
        r, at most.
    features : {"kernel", "linear"}
        Principal components of a Gaussian plus a linear kernel, or of the values.
    unit_rows : bool
        Whether centred rows are scaled to unit length first.
    landmarks : int
        Rows that kernel features compare with, at most.
    random_state : int or None
        Draws the landmarks where there are more rows.

    References
    ----------
    Li, Chinchali and Topcu, CSA: data-efficient mapping of unimodal features to multimodal features, ICLR 2025.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 4))
    >>> z = {"image": shared @ rng.normal(size=(4, 20)), "text": shared @ rng.normal(size=(4, 10))}
    >>> z["text"][:50] = np.nan                            # fifty items without text
    >>> cca = CCA().fit(z)
    >>> cca.similarity({"text": z["text"][50:53]}, {"image": z["image"][50:53]}).argmax(axis=1).tolist()
    [0, 1, 2]
    """

    name = "cca"

    def _learn(self, rows: TrainingFeatures) -> dict[str, Tensor]:
        learned = {}
        for a, b in combinations(range(len(rows.names)), 2):
            ends = self.routes_[a, b], self.routes_[b, a]
            middle = ends[0][-1], ends[1][-1]
            *sides, rho = canonical(*rows.both(*middle), self.ridge, self.directions)
            learned[f"rho.{rows.names[a]}.{rows.names[b]}"] = rho
            for (m, other), path, last in zip(((a, b), (b, a)), ends, sides, strict=True):
                links = [regress(*rows.both(*link), self.ridge) for link in pairwise(path)]
                key = f"{rows.names[m]}.{rows.names[other]}"
                learned[f"map.{key}"], learned[f"bias.{key}"] = compose([*links, last])
        return learned

    def _rho(self, a: int, b: int) -> Tensor:
        a, b = min(a, b), max(a, b)
        return self.learned_[f"rho.{self.names_[a]}.{self.names_[b]}"]

    def _block(self, a: int, b: int, f: Tensor) -> Tensor:
        key = f"{self.names_[a]}.{self.names_[b]}"
        u = normalize(f @ self.learned_[f"map.{key}"] + self.learned_[f"bias.{key}"], dim=1)
        return u * self._rho(a, b).sqrt()

    def _block_width(self, a: int, b: int) -> int:
        return len(self._rho(a, b))

    @property
    def correlations_(self) -> dict[str, Tensor]:
        """Pair, as "image|text" -> its canonical correlations."""
        pairs = combinations(range(len(self.names_)), 2)
        return {f"{self.names_[a]}|{self.names_[b]}": self._rho(a, b) for a, b in pairs}


def canonical(x: Tensor, y: Tensor, ridge: float, directions: int) -> tuple[Linear, Linear, Tensor]:
    """(canonical coordinates of x, of y, their correlations) from rows that have both."""
    roots = [inverse_root(covariance(side, side), ridge) for side in (x, y)]
    u, rho, v = torch.linalg.svd(roots[0] @ covariance(x, y) @ roots[1], full_matrices=False)
    most = max(1, min(directions, int((rho > RANK).sum())))
    maps = roots[0] @ u[:, :most], roots[1] @ v.T[:, :most]
    first, second = ((matrix, -side.mean(0) @ matrix) for matrix, side in zip(maps, (x, y), strict=True))
    return first, second, rho[:most].clamp(max=1)


class MCCA(_Correlation, OneSpace):
    """Multi-set canonical correlation analysis: one space from the covariances of the rows that have both.

    S_aa is the covariance of the features of all rows that have a, S_ab that of the rows that have both (0 where fewer than
    two rows do), and D the diagonal blocks of S with ridge times the mean variance added. The leading solutions of

        S v = lambda D v,    lambda > 1,

    are the directions of the space, each weighted by ((lambda - 1) / (k - 1))^(1/4); an item is the mean of f^m V_m over
    what it has, scaled to unit length.

    Parameters
    ----------
    ridge, directions, features, unit_rows, landmarks, random_state
        As for `CCA`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 4))
    >>> z = {name: shared @ rng.normal(size=(4, 20)) for name in ("image", "text", "speech")}
    >>> z["speech"][:50], z["text"][250:] = np.nan, np.nan
    >>> query = {"text": z["text"][50:53], "speech": z["speech"][50:53]}
    >>> MCCA().fit(z).similarity(query, {"image": z["image"][50:53]}).argmax(axis=1).tolist()
    [0, 1, 2]
    """

    name = "mcca"
    unit_first: ClassVar[bool] = False

    def _learn(self, rows: TrainingFeatures) -> dict[str, Tensor]:
        k = len(rows.names)
        covariances = [[covariance(*rows.both(a, b)) for b in range(k)] for a in range(k)]  # S
        roots = [inverse_root(covariances[m][m], self.ridge) for m in range(k)]
        blocks = [[roots[a] @ covariances[a][b] @ roots[b] for b in range(k)] for a in range(k)]
        values, vectors = _leading(blocks, self.directions, least=1.0)
        weight = ((values - 1).clamp(min=0) / (k - 1)) ** 0.25
        maps = [root @ part * weight for root, part in zip(roots, vectors, strict=True)]
        return _maps(rows.names, maps, [rows.of(m).mean(0) for m in range(k)])


class GCCA(_Correlation, OneSpace):
    """Generalised canonical correlation analysis (MAXVAR) with missing rows.

    X_m are the features of modality m, K_m the diagonal mask of the rows that have it, N = sum_m K_m, and ridge is in units
    of the mean sum of squares of a direction. With A_m = K_m X_m (X_m' K_m X_m + ridge I)^(-1/2) and V, s the leading right
    singular vectors and values of N^(-1/2) [A_1 ... A_k], the common coordinates of the rows are

        G = N^(-1) [A_1 ... A_k] V / s,

        U_m = (X_m' K_m X_m + ridge I)^(-1) X_m' K_m G = (X_m' K_m X_m + ridge I)^(-1/2) V_m s.

    An item is the mean of f^m U_m over what it has, scaled to unit length.

    Parameters
    ----------
    ridge, directions, features, unit_rows, landmarks, random_state
        As for `CCA`.

    References
    ----------
    van de Velden and Takane, Generalized canonical correlation analysis with missing values, Computational Statistics 2012.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 4))
    >>> z = {name: shared @ rng.normal(size=(4, 20)) for name in ("image", "text", "speech")}
    >>> z["speech"][:50], z["text"][250:] = np.nan, np.nan
    >>> query = {"text": z["text"][50:53], "speech": z["speech"][50:53]}
    >>> GCCA(ridge=0.1).fit(z).similarity(query, {"image": z["image"][50:53]}).argmax(axis=1).tolist()
    [0, 1, 2]
    """

    name = "gcca"
    unit_first: ClassVar[bool] = False

    def _learn(self, rows: TrainingFeatures) -> dict[str, Tensor]:
        share = 1 / rows.present.sum(1).double()  # N^-1
        means = [rows.of(m).mean(0) for m in range(len(rows.names))]
        x = [torch.where(rows.present[:, [m]], f - means[m], 0.0) for m, f in enumerate(rows.values)]  # K_m X_m
        roots = [inverse_root(f.T @ f, self.ridge) for f in x]
        blocks = [
            [roots[a] @ ((f * share[:, None]).T @ g) @ roots[b] for b, g in enumerate(x)] for a, f in enumerate(x)
        ]
        values, vectors = _leading(blocks, self.directions, least=0.0)
        return _maps(rows.names, [r @ part * values.sqrt() for r, part in zip(roots, vectors, strict=True)], means)


def _leading(blocks: list[list[Tensor]], most: int, least: float) -> tuple[Tensor, list[Tensor]]:
    """(values, vectors per modality) of a symmetric matrix of blocks: the largest values above `least`, at least one."""
    matrix = torch.cat([torch.cat(row, dim=1) for row in blocks])
    values, vectors = numpy_eigh((matrix + matrix.T) / 2)
    values, vectors = values.flip(0), vectors.flip(1)
    count = max(1, min(most, int((values > least + RANK * values[0].abs()).sum())))
    kept = vectors[:, :count].contiguous()
    return values[:count].clamp(min=0), list(kept.split([len(row[0]) for row in blocks]))


def _maps(names: tuple[str, ...], maps: list[Tensor], means: list[Tensor]) -> dict[str, Tensor]:
    """The tensors of a `OneSpace`, of centred features."""
    learned = {f"map.{name}": matrix for name, matrix in zip(names, maps, strict=True)}
    return learned | {f"bias.{name}": -mean @ m for name, mean, m in zip(names, means, maps, strict=True)}
