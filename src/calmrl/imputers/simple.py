"""Imputers that remember the rows: column means, nearest neighbours, ridge regressions, and ranked candidates."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.arguments import Count, Fraction, Positive
from calmrl.arrays import Array, Views
from calmrl.imputers.base import BlockImputer, Blocks
from calmrl.latent.rows import group_rows

ALPHAS = tuple(10.0**power for power in range(-1, 6))
DISTANCE_BYTES = 1 << 26
Ranking = Callable[[list[Tensor]], tuple[Tensor, Tensor]]
Shared = dict[int, Any]  # per source modality, what a method knows of it and the missing modality


class MemoryImputer(BlockImputer):
    """Keeps the training rows; a subclass says how rows of one pattern predict a missing modality."""

    def __init__(self, *, blocks: Blocks = None) -> None:
        self.blocks = blocks

    def fit(self, z: Any, present: Array | None = None, observed: Any = None) -> MemoryImputer:
        """Keep the rows, in float64."""
        views = self._training_rows(z, present, observed)
        self.names_, self.widths_ = views.names, views.widths
        self.present_ = views.present.clone()
        self.rows_ = [
            torch.where(views.present[:, j, None], values.detach().double(), 0.0)
            for j, values in enumerate(views.rows(0, len(views)))
            if values is not None
        ]
        pairs = zip(self.rows_, self.present_.unbind(1), strict=True)
        seen = [rows[has] if bool(has.any()) else rows.new_zeros((1, rows.shape[1])) for rows, has in pairs]
        self.mean_, self.std_ = [block.mean(0) for block in seen], [block.std(0, correction=0) for block in seen]
        return self

    def _fill(self, views: Views, with_std: bool) -> tuple[list[Tensor], list[Tensor]]:
        device = views.present.device
        imputed = [torch.zeros((len(views), width), dtype=torch.float64, device=device) for width in self.widths_]
        std = [torch.zeros_like(block) for block in imputed] if with_std else []
        values = [v if v is None else v.detach() for v in views.rows(0, len(views))]  # what is imputed is a constant
        patterns, order, bounds = group_rows(views.present)
        for m in range(len(self.names_)):
            shared: Shared = {}
            for p in (~patterns[:, m]).nonzero()[:, 0].tolist():
                rows = order[bounds[p] : bounds[p + 1]]
                observed = zip(values, patterns[p].tolist(), strict=True)
                seen = {j: v[rows].double().cpu() for j, (v, has) in enumerate(observed) if v is not None and has}
                guess, deviation = self._predict(seen, m, with_std, shared)
                imputed[m][rows] = guess.to(device)
                if with_std:
                    std[m][rows] = deviation.to(device)
        return imputed, std

    def _learned(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        rows = {f"rows.{name}": rows for name, rows in zip(self.names_, self.rows_, strict=True)}
        return {}, {"present": self.present_, **rows}

    def _relearn(self, meta: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        self.fit({name: tensors[f"rows.{name}"] for name in meta["names"]}, tensors["present"])

    def _predict(self, seen: dict[int, Tensor], m: int, with_std: bool, shared: Shared) -> tuple[Tensor, Tensor]:
        """(mean, deviation), each (n, d_m), of modality m for rows whose observed modalities are `seen`.

        Without `with_std` nobody reads the deviation: it may be anything. Patterns share what one source knows of m.
        """
        n = len(next(iter(seen.values())))
        return self.mean_[m].cpu().expand(n, -1), self.std_[m].cpu().expand(n, -1)


class MeanImputer(MemoryImputer):
    """Every missing entry is its column's mean over the rows that have it.

    Holes inside a modality are completed first, by the latent model (`GaussianImputer`), with its deviations.

    Parameters
    ----------
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> data = load_dataset("world", n=80)  # lacks 30 % of its blocks
    >>> MeanImputer().fit_transform(data.z, data.present)["text"].shape
    (80, 48)
    """


class NeighbourImputer(MemoryImputer):
    """Averages remembered rows that have the missing modality; a subclass says which ones, and with which weights."""

    def _predict(self, seen: dict[int, Tensor], m: int, with_std: bool, shared: Shared) -> tuple[Tensor, Tensor]:
        mean, deviation = super()._predict(seen, m, with_std, shared)
        pool = self._pool(list(seen), m)
        if not len(pool):
            return mean, deviation
        values, nearest = self.rows_[m].cpu()[pool], self._ranking(list(seen), m, pool, shared)
        guesses, spreads = [], []
        step = max(1, DISTANCE_BYTES // (8 * len(pool)))
        for start in range(0, len(mean), step):
            at, weight = nearest([block[start : start + step] for block in seen.values()])
            neighbours = values[at]  # (rows, neighbours, d)
            guess = weight[:, None] @ neighbours  # (rows, 1, d)
            guesses.append(guess[:, 0])
            if with_std:
                spreads.append((weight[:, None] @ (neighbours - guess).square_())[:, 0].sqrt())
        return torch.cat(guesses), torch.cat(spreads) if with_std else deviation

    def _pool(self, seen: list[int], m: int) -> Tensor:
        """The remembered rows that can be neighbours."""
        return self.present_[:, m].nonzero()[:, 0].cpu()

    @abstractmethod
    def _ranking(self, seen: list[int], m: int, pool: Tensor, shared: Shared) -> Ranking:
        """Observed blocks of some rows -> (places in the pool, weights that add up to 1), each (rows, neighbours)."""


class KNNImputer(NeighbourImputer):
    """Mean of the `n_neighbors` nearest training rows that have the missing modality.

    Distance: mean squared difference per entry over the modalities that both rows have; rows that share none are never
    neighbours. Where no row qualifies, the column mean.

    Holes inside a modality are completed first, by the latent model (`GaussianImputer`), with its deviations.

    Parameters
    ----------
    n_neighbors : int
        Number of rows that are averaged.
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> data = load_dataset("world", n=80)  # lacks 30 % of its blocks
    >>> KNNImputer().fit_transform(data.z, data.present)["text"].shape
    (80, 48)
    """

    def __init__(self, n_neighbors: Count = 10, *, blocks: Blocks = None) -> None:
        super().__init__(blocks=blocks)
        self.n_neighbors = n_neighbors

    def _pool(self, seen: list[int], m: int) -> Tensor:
        pool = super()._pool(seen, m)
        return pool[self.present_.cpu()[pool][:, seen].any(1)]

    def _ranking(self, seen: list[int], m: int, pool: Tensor, shared: Shared) -> Ranking:
        memory = [self.rows_[j].cpu()[pool] for j in seen]
        both = self.present_.cpu()[pool][:, seen].double()  # (pool, seen)
        entries = both @ torch.tensor([float(self.widths_[j]) for j in seen], dtype=torch.float64)
        count = min(self.n_neighbors, len(pool))

        def nearest(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
            distance = torch.zeros((), dtype=torch.float64)
            for column, (mine, theirs) in enumerate(zip(rows, memory, strict=True)):
                square = mine.square().sum(1)[:, None] + theirs.square().sum(1) - 2 * mine @ theirs.T
                distance = distance + square * both[:, column]  # rows of absent modalities are zero, not NaN
            at = (distance / entries).topk(count, largest=False).indices
            return at, torch.full(at.shape, 1 / count, dtype=torch.float64)

        return nearest


class RidgeImputer(MemoryImputer):
    """One ridge regression per pair of pattern and missing modality, its strength chosen by leave-one-out error.

    Fitted on the training rows that have the whole pattern and the missing modality. Where these are fewer than
    `min_rows`, the modality of the pattern that fewest of the rows have is left out; at the end, the column mean.

    Holes inside a modality are completed first, by the latent model (`GaussianImputer`), with its deviations.

    Parameters
    ----------
    min_rows : int
        Least number of rows that a regression is fitted on.
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> data = load_dataset("world", n=80)  # lacks 30 % of its blocks
    >>> RidgeImputer().fit_transform(data.z, data.present)["text"].shape
    (80, 48)
    """

    def __init__(self, min_rows: Count = 10, *, blocks: Blocks = None) -> None:
        super().__init__(blocks=blocks)
        self.min_rows = min_rows

    def _predict(self, seen: dict[int, Tensor], m: int, with_std: bool, shared: Shared) -> tuple[Tensor, Tensor]:
        use = list(seen)
        while use:
            rows = self.present_[:, [*use, m]].all(1)
            if int(rows.sum()) >= self.min_rows:
                break
            have = self.present_[self.present_[:, m]]
            use.remove(min(use, key=lambda j: int(have[:, j].sum())))
        if not use:
            return super()._predict(seen, m, with_std, shared)
        given = torch.cat([self.rows_[j][rows] for j in use], dim=1).cpu()
        target = self.rows_[m][rows].cpu()
        W, inside = _ridge(given - given.mean(0), target - target.mean(0))
        guess = (torch.cat([seen[j] for j in use], dim=1) - given.mean(0)) @ W + target.mean(0)
        return guess, (target - target.mean(0) - inside).std(0, correction=0).expand(len(guess), -1)


def _ridge(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(W, x W) of centred rows, with the strength of the least leave-one-out error, intercept refitted."""
    wide = len(x) <= x.shape[1]
    energy, axes = torch.linalg.eigh(x @ x.T if wide else x.T @ x)
    energy = energy.clamp(min=0)
    p = axes * energy.sqrt() if wide else x @ axes  # p^T p = diag(energy)
    few = fewer_columns(y)
    along, shares, fewer = p.T @ y, p.square(), p.T @ few

    def error(alpha: float) -> float:
        shrink = 1 / (energy + alpha)
        left = (1 - 1 / len(x) - shares @ shrink).clamp(min=1e-8)
        return float(((few - p @ (shrink[:, None] * fewer)) / left[:, None]).square().sum())

    shrink = 1 / (energy + min(ALPHAS, key=error))
    W = x.T @ (axes @ (shrink[:, None] * (axes.T @ y))) if wide else axes @ (shrink[:, None] * along)
    return W, p @ (shrink[:, None] * along)


def fewer_columns(y: Tensor) -> Tensor:
    """(n, at most n) with the same Y Y^T: rows keep all their inner products, so that squared errors are the same."""
    if y.shape[1] <= y.shape[0]:
        return y
    energy, axes = torch.linalg.eigh(y @ y.T)
    return axes * energy.clamp(min=0).sqrt()


class KnowledgeBridgerImputer(NeighbourImputer):
    """Candidates from memory, ranked by likeness and by structure; nothing is trained.

    For a row with modalities O, every item r of the memory that has the missing modality m is a candidate, with score
        (1 - structure) mean_{o in O} cos(z^o, z_r^o) + structure mean_{o in O} corr_l(cos(z^o, z_l^o), cos(z_r^m, z_l^m)):
    its likeness to the row in the modalities that both have, and how well its relations to landmark items l in modality
    m agree with the row's relations to the same items in modality o. The best `n_candidates` are averaged with weights
    softmax(score / temperature).

    Adapted to representations: the original builds a knowledge graph with a large multimodal model, generates
    candidates with a generator and ranks them by graph and by representation. Here the graph is the matrix of cosines
    among remembered items (centred), the landmarks are items with both modalities, and the candidates are remembered
    ones; an item needs the missing modality, not all modalities, to be remembered.

    Ke et al., Knowledge Bridger: towards training-free missing modality completion, CVPR 2025.

    Holes inside a modality are completed first, by the latent model (`GaussianImputer`), with its deviations.

    Parameters
    ----------
    n_candidates : int
        Number of the best ranked candidates that are averaged.
    structure : float
        Weight of the agreement of relations, 0 to 1.
    temperature : float
        Of the weights; a small one trusts the first candidate.
    landmarks : int
        Number of items that relations are taken to, evenly spaced in the memory.
    blocks : list, dict or None
        For one 2-D array instead of a dict, as in `GaussianImputer`.

    Examples
    --------
    >>> from calmrl.datasets import load_dataset
    >>> data = load_dataset("world", n=80)  # lacks 30 % of its blocks
    >>> KnowledgeBridgerImputer().fit_transform(data.z, data.present)["text"].shape
    (80, 48)
    """

    def __init__(
        self,
        n_candidates: Count = 20,
        structure: Fraction = 0.3,
        temperature: Positive = 0.1,
        landmarks: Count = 256,
        *,
        blocks: Blocks = None,
    ) -> None:
        super().__init__(blocks=blocks)
        self.n_candidates = n_candidates
        self.structure = structure
        self.temperature = temperature
        self.landmarks = landmarks

    def _ranking(self, seen: list[int], m: int, pool: Tensor, shared: Shared) -> Ranking:
        for j in seen:
            if j not in shared:
                shared[j] = self._related(j, m, pool)
        sources = [shared[j] for j in seen]
        count = self.present_.cpu()[pool][:, seen].sum(1).clamp(min=1)

        def nearest(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
            likeness = agreement = torch.zeros((), dtype=torch.float64)
            for j, block, (theirs, marks, relations) in zip(seen, rows, sources, strict=True):
                mine = self._directions(block, j)
                likeness = likeness + mine @ theirs.T
                agreement = agreement + _profile(mine @ marks.T) @ relations.T / len(seen)
            score = (1 - self.structure) * likeness / count + self.structure * agreement
            best = score.topk(min(self.n_candidates, len(pool)), dim=1)
            return best.indices, torch.softmax(best.values / self.temperature, dim=1)

        return nearest

    def _related(self, j: int, m: int, pool: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(directions of the pool in modality j, zero where absent; those of landmarks; relations to these in modality m)."""
        has, direction = self.present_.cpu()[pool, j], self._directions(self.rows_[m].cpu()[pool], m)
        theirs, at = self._directions(self.rows_[j].cpu()[pool], j) * has[:, None], self._landmarks(has)
        return (
            theirs,
            theirs[at],
            _profile(direction @ direction[at].T),
        )  # (pool, d_j), (landmarks, d_j), (pool, landmarks)

    def _directions(self, block: Tensor, m: int) -> Tensor:
        """Centred rows of unit length."""
        return normalize(block - self.mean_[m].cpu(), dim=1)

    def _landmarks(self, both: Tensor) -> Tensor:
        """Positions in the pool of items that also have the other modality, evenly spaced."""
        at = both.nonzero()[:, 0]
        if len(at) <= self.landmarks:
            return at
        return at[torch.linspace(0, len(at) - 1, self.landmarks).round().long()]


def _profile(cosines: Tensor) -> Tensor:
    """Rows centred and of unit length, so that inner products are correlations; no landmarks, no correlation."""
    if cosines.shape[1] == 0:
        return cosines
    return normalize(cosines - cosines.mean(1, keepdim=True), dim=1)
