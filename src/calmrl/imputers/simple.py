"""The simple alternatives: the column mean, the nearest complete neighbours, and one ridge regression per pattern."""

from __future__ import annotations

import os
from typing import Any

import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import RidgeCV
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from calmrl.convention import Array, check
from calmrl.errors import InputError
from calmrl.latent.patterns import group
from calmrl.latent.predict import join, keep_observed
from calmrl.latent.storage import load_state, save_state

ALPHAS = tuple(10.0**power for power in range(-1, 6))
DISTANCE_BYTES = 1 << 26


class _MemoryImputer(TransformerMixin, BaseEstimator):
    """Keeps the training rows; a subclass says how rows of one pattern predict a missing modality."""

    def fit(self, z: Any, present: Array | None = None) -> _MemoryImputer:
        """Keep the rows, in float64."""
        views = check(z, present, min_rows=1)
        self.names_, self.widths_ = views.names, views.widths
        self.present_ = views.present.clone()
        self.rows_ = [
            torch.where(views.present[:, j, None], values.detach().double(), 0.0)
            for j, values in enumerate(views.rows(0, len(views)))
            if values is not None
        ]
        self.mean_ = [rows[has].mean(0) if bool(has.any()) else rows.sum(0) for rows, has in self._columns()]
        self.std_ = [
            rows[has].std(0, correction=0) if bool(has.any()) else torch.zeros_like(mean)
            for (rows, has), mean in zip(self._columns(), self.mean_, strict=True)
        ]
        return self

    def transform(self, z: Any, present: Array | None = None) -> dict[str, Array]:
        """The input with every missing modality filled in; observed entries bit for bit as they were."""
        return self.impute(z, present)

    def impute(self, z: Any, present: Array | None = None, return_std: bool = False) -> Any:
        """As `transform`; with `return_std` also a standard deviation per entry (0 where observed)."""
        check_is_fitted(self)
        views = check(z, present, names=self.names_, widths=self.widths_)
        device = views.present.device
        filled = [torch.zeros((len(views), width), dtype=torch.float64, device=device) for width in self.widths_]
        std = [torch.zeros_like(block) for block in filled]
        values = views.rows(0, len(views))
        patterns, order, bounds = group(views.present)
        for p, pattern in enumerate(patterns):
            rows = order[bounds[p] : bounds[p + 1]]
            seen = {m: v[rows].double().cpu() for m, v in enumerate(values) if v is not None and bool(pattern[m])}
            for m in (~pattern).nonzero()[:, 0].tolist():
                guess, spread = self._predict(seen, m)
                filled[m][rows], std[m][rows] = guess.to(device), spread.to(device)
        done = [[keep_observed(v, views.present[:, m], filled[m], views.given())] for m, v in enumerate(values)]
        completed = join(done, views, self.widths_)
        return (completed, join([[s] for s in std], views, self.widths_)) if return_std else completed

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a folder with imputer.json and imputer.safetensors; no pickle."""
        check_is_fitted(self)
        tensors = {f"rows.{name}": rows for name, rows in zip(self.names_, self.rows_, strict=True)}
        meta = {"class": type(self).__name__, "arguments": self.get_params(deep=False), "names": list(self.names_)}
        save_state({"meta": meta, "tensors": {"present": self.present_, **tensors}}, path, overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> _MemoryImputer:
        """Read what `save` wrote."""
        state = load_state(path)
        if state["meta"].get("class") != cls.__name__:
            raise InputError(f"{path} holds a {state['meta'].get('class')!r} imputer, not {cls.__name__}")
        z = {name: state["tensors"][f"rows.{name}"] for name in state["meta"]["names"]}
        return cls(**state["meta"]["arguments"]).fit(z, state["tensors"]["present"])

    def _columns(self) -> list[tuple[Tensor, Tensor]]:
        return [(rows, self.present_[:, j]) for j, rows in enumerate(self.rows_)]

    def _predict(self, seen: dict[int, Tensor], m: int) -> tuple[Tensor, Tensor]:
        """(mean, deviation), each (n, d_m), of modality m for rows whose observed modalities are `seen`."""
        n = len(next(iter(seen.values())))
        return self.mean_[m].cpu().expand(n, -1), self.std_[m].cpu().expand(n, -1)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "rows_")


class MeanImputer(_MemoryImputer):
    """Every missing entry is its column's mean over the rows that have it."""


class KNNImputer(_MemoryImputer):
    """Mean of the `n_neighbors` nearest training rows that have the missing modality.

    Distance: mean squared difference per entry over the modalities that both rows have; rows that share none are never
    neighbours. Where no row qualifies, the column mean.
    """

    def __init__(self, n_neighbors: int = 10) -> None:
        self.n_neighbors = n_neighbors

    def _predict(self, seen: dict[int, Tensor], m: int) -> tuple[Tensor, Tensor]:
        pool = self.present_[:, m].nonzero()[:, 0]
        shared = torch.stack([self.present_[pool, j] for j in seen], dim=1).double()  # (pool, seen)
        entries = shared @ torch.tensor([float(self.widths_[j]) for j in seen], dtype=torch.float64)
        pool, shared, entries = pool[entries > 0], shared[entries > 0], entries[entries > 0]
        fallback = super()._predict(seen, m)
        if not len(pool):
            return fallback
        guesses, spreads = [], []
        step = max(1, DISTANCE_BYTES // (8 * len(pool)))
        for start in range(0, len(fallback[0]), step):
            distance = torch.zeros((), dtype=torch.float64)
            for column, (j, values) in enumerate(seen.items()):
                mine, theirs = values[start : start + step], self.rows_[j][pool].cpu()
                square = mine.square().sum(1)[:, None] + theirs.square().sum(1) - 2 * mine @ theirs.T
                distance = distance + square * shared[:, column]  # rows of absent modalities are zero, not NaN
            nearest = (distance / entries).topk(min(self.n_neighbors, len(pool)), largest=False).indices
            neighbours = self.rows_[m][pool[nearest]].cpu()  # (rows, neighbours, d)
            guesses.append(neighbours.mean(1))
            spreads.append(neighbours.std(1, correction=0))
        return torch.cat(guesses), torch.cat(spreads)


class RidgeImputer(_MemoryImputer):
    """One ridge regression per pair of pattern and missing modality, its strength chosen by leave-one-out error.

    Fitted on the training rows that have the whole pattern and the missing modality. Where these are fewer than
    `min_rows`, the modality of the pattern that fewest of the rows have is left out; at the end, the column mean.
    """

    def __init__(self, min_rows: int = 10) -> None:
        self.min_rows = min_rows

    def _predict(self, seen: dict[int, Tensor], m: int) -> tuple[Tensor, Tensor]:
        use = list(seen)
        while use:
            rows = self.present_[:, [*use, m]].all(1)
            if int(rows.sum()) >= self.min_rows:
                break
            have = self.present_[self.present_[:, m]]
            use.remove(min(use, key=lambda j: int(have[:, j].sum())))
        if not use:
            return super()._predict(seen, m)
        given = torch.cat([self.rows_[j][rows] for j in use], dim=1).cpu().numpy()
        target = self.rows_[m][rows].cpu().numpy()
        model = RidgeCV(alphas=ALPHAS).fit(given, target)
        guess = torch.as_tensor(model.predict(torch.cat([seen[j] for j in use], dim=1).numpy()))
        residual = torch.as_tensor(target - model.predict(given).reshape(target.shape)).std(0, correction=0)
        return guess.reshape(-1, self.widths_[m]), residual.expand(len(guess), -1)
