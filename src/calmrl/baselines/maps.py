"""Baselines without a model of both sides: regression and rotation onto a hub modality, and relative representations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.arguments import Count, Fraction, NotNegative, seed_of
from calmrl.aligner.features import RANK
from calmrl.baselines.base import LEAST, OneSpace, Pairwise, TrainingFeatures, chain, covariance, inverse_root
from calmrl.errors import InputError

Linear = tuple[Tensor, Tensor]  # x -> x map + bias


def regress(x: Tensor, y: Tensor, ridge: float) -> Linear:
    """Ridge regression of y on x: with centred rows, (X'X / n + ridge s^2 I)^(-1) X'Y / n, s^2 the mean variance of x."""
    root = inverse_root(covariance(x, x), ridge)
    matrix = root @ root @ covariance(x, y)
    return matrix, y.mean(0) - x.mean(0) @ matrix


def rotate(x: Tensor, y: Tensor) -> Linear:
    """Orthogonal Procrustes: with centred rows, the orthonormal R with the least |X R - Y|.

    Directions of which the rows say nothing, for there are too few of them, are left out: any turn would do.
    """
    u, size, v = torch.linalg.svd(covariance(x, y), full_matrices=False)
    known = size > RANK * size.max()
    matrix = u[:, known] @ v[known]
    return matrix, y.mean(0) - x.mean(0) @ matrix


def compose(links: Sequence[Linear]) -> Linear:
    """One linear map from several, the first of which comes first."""
    matrix, bias = links[0]
    for following, offset in links[1:]:
        matrix, bias = matrix @ following, bias @ following + offset
    return matrix, bias


class _OntoHub(OneSpace):
    """Features of every modality mapped to those of one of them, link by link where no rows have both."""

    hub: str | None

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.hub is not None and not isinstance(self.hub, str):
            raise InputError(f"hub must be the name of a modality or None; got {self.hub!r}")

    @property
    def hub_(self) -> str:
        """The modality that the others are mapped onto: by default the one that meets others in most rows."""
        if self.hub is not None:
            if self.hub not in self.names_:
                raise InputError(f"hub is {self.hub!r}, which is no modality of z; there are {', '.join(self.names_)}")
            return self.hub
        met = self.together_.sum(1) - self.together_.diagonal()
        return self.names_[int(met.argmax())]

    @abstractmethod
    def _link(self, x: Tensor, y: Tensor) -> Linear:
        """From features of one modality to those of another, of the same rows."""

    def _learn(self, rows: TrainingFeatures) -> dict[str, Tensor]:
        hub, learned = rows.names.index(self.hub_), {}
        for m, name in enumerate(rows.names):
            path = chain(rows.together, m, hub)
            width = rows.values[m].shape[1]
            start = torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
            links = [self._link(*rows.both(*link)) for link in pairwise(path)]
            learned[f"map.{name}"], learned[f"bias.{name}"] = compose([start, *links])
        return learned


@dataclass(eq=False, repr=False)
class RidgeMap(_OntoHub):
    """Ridge regression onto a hub modality: its features are predicted from those of every other modality.

    The weights come from the rows that have both; a modality that shares no rows with the hub is predicted link by link
    through others that do. Vectors are the predicted features, scaled to unit length; an item with several modalities has
    the sum of theirs.

    Parameters
    ----------
    ridge : float
        In units of the mean variance of the features.
    whitening : float in [0, 1]
        Direction i of the features is divided by its variance to the power of half this number.
    hub : str or None
        The modality to map onto; None takes the one that meets others in most rows.
    features, unit_rows, landmarks, random_state
        As for `CCA`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 4))
    >>> z = {"image": shared @ rng.normal(size=(4, 20)), "text": shared @ rng.normal(size=(4, 10))}
    >>> z["text"][:50] = np.nan
    >>> model = RidgeMap(ridge=0.1, hub="image").fit(z)
    >>> model.similarity({"text": z["text"][50:53]}, {"image": z["image"][50:53]}).argmax(axis=1).tolist()
    [0, 1, 2]
    """

    name = "ridge"

    ridge: NotNegative = 1.0
    whitening: Fraction = 0.5
    hub: str | None = None

    def _link(self, x: Tensor, y: Tensor) -> Linear:
        return regress(x, y, self.ridge)


@dataclass(eq=False, repr=False)
class ProcrustesMap(_OntoHub):
    """Orthogonal Procrustes onto a hub modality: leading features of every other modality are turned onto the hub's.

    R with R'R = I (or R R' = I, where the hub has more features) and the least |X R - Y| comes from the rows that have both; a
    modality that shares no rows with the hub is turned link by link through others that do. An item with several modalities
    has the sum of their unit vectors.

    Parameters
    ----------
    directions : int
        Leading features of each modality that take part, at most.
    whitening : float in [0, 1]
        Direction i of the features is divided by its variance to the power of half this number.
    hub : str or None
        The modality to turn onto; None takes the one that meets others in most rows.
    features, unit_rows, landmarks, random_state
        As for `CCA`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> image = rng.normal(size=(300, 6)) * [6, 5, 4, 3, 2, 1]
    >>> z = {"image": image, "text": image @ np.linalg.qr(rng.normal(size=(6, 6)))[0]}
    >>> z["text"][:50] = np.nan
    >>> model = ProcrustesMap(features="linear").fit(z)
    >>> model.similarity({"text": z["text"][50:53]}, {"image": z["image"][50:53]}).argmax(axis=1).tolist()
    [0, 1, 2]
    """

    name = "procrustes"

    directions: Count = 256
    whitening: Fraction = 0.0
    hub: str | None = None

    def _features(self, m: int, x: Tensor) -> Tensor:
        return super()._features(m, x)[:, : self.directions]

    def _link(self, x: Tensor, y: Tensor) -> Linear:
        return rotate(x, y)


@dataclass(eq=False, repr=False)
class ASIF(Pairwise):
    """Relative representations of every pair: an item is described by how near it is to items that have both (anchors).

    Its numbers are the cosines of its features with those of the anchors in its own modality, the largest `nearest` of them,
    negative ones as 0, to the power `power`, scaled to unit length; the similarity of two items is the inner product of their
    numbers. `similarity` is this over k - 1.

    Where fewer than two rows have both a and b, a becomes the weighted mean of its anchors in a modality that shares rows with
    b, and is compared with b there. An item with several modalities has the sum of their vectors, and so of their
    cosines.

    Parameters
    ----------
    nearest : int
        Anchors that count for an item, at most.
    power : float
        How much the nearest stand out.
    whitening : float in [0, 1]
        Direction i of the features is divided by its variance to the power of half this number.
    anchors : int
        Anchors of a pair, at most; more rows are drawn from.
    features, unit_rows, landmarks, random_state
        As for `CCA`.

    References
    ----------
    Norelli et al., ASIF: coupled data turns unimodal models to multimodal without training, NeurIPS 2023.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(300, 4))
    >>> z = {"image": shared @ rng.normal(size=(4, 20)), "text": shared @ rng.normal(size=(4, 10))}
    >>> z["text"][:50] = np.nan
    >>> model = ASIF(features="linear").fit(z)
    >>> model.similarity({"text": z["text"][50:53]}, {"image": z["image"][50:53]}).argmax(axis=1).tolist()
    [0, 1, 2]
    """

    name = "asif"

    nearest: Count = 800
    power: NotNegative = 8.0
    whitening: Fraction = 0.0
    anchors: Count = 2000

    def _learn(self, rows: TrainingFeatures) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed_of(self.random_state))
        learned = {}
        for a, b in zip(*np.nonzero(np.triu(rows.together, 1) >= LEAST), strict=True):
            x, y = rows.both(a, b)
            kept = torch.arange(len(x))
            if len(x) > self.anchors:
                kept = torch.randperm(len(x), generator=generator)[: self.anchors].sort().values
            learned[self._key(rows.names, a, b)] = normalize(x[kept], dim=1)
            learned[self._key(rows.names, b, a)] = normalize(y[kept], dim=1)
        return learned

    @staticmethod
    def _key(names: tuple[str, ...], a: int, b: int) -> str:
        return f"anchors.{names[a]}.{names[b]}"

    def _relative(self, a: int, b: int, f: Tensor) -> Tensor:
        """(n, anchors) numbers of features of modality a, by the anchors that also have b."""
        cosines = normalize(f, dim=1) @ self.learned_[self._key(self.names_, a, b)].T
        largest = cosines.topk(min(self.nearest, cosines.shape[1]), dim=1).values
        kept = (cosines >= largest[:, -1:]) & (cosines > 0)
        share = torch.where(kept, cosines / largest[:, :1], 0.0)  # at most 1, so that powers do not vanish
        return normalize(torch.where(kept, share**self.power, 0.0), dim=1)

    def _block(self, a: int, b: int, f: Tensor) -> Tensor:
        for m, n in pairwise(self.routes_[a, b]):
            f = self._relative(m, n, f) @ self.learned_[self._key(self.names_, n, m)]
        return self._relative(self.routes_[a, b][-1], self.routes_[b, a][-1], f)

    def _block_width(self, a: int, b: int) -> int:
        return len(self.learned_[self._key(self.names_, self.routes_[a, b][-1], self.routes_[b, a][-1])])
