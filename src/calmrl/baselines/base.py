"""What all baselines share: features, the vector of an item from what it has, and files.

The features f^m of modality m are those of the aligner: centred rows, of unit length or not, then the leading principal
directions of the values or of a kernel, scaled to mean variance one.

Baselines that learn each pair of modalities by itself (`Pairwise`): modality a has a block of numbers for every other
modality b; a and b meet in block (a, b) and nowhere else. One more number, which no other modality has, makes the vector one
of unit length:

    v^a = [block_ab, block_ac, ..., rest_a] / sqrt(k - 1),    v^a . v^b = block_ab . block_ba / (k - 1).

So the cosine of two modalities is the similarity of their pair over k - 1, and the vector of several modalities, the sum of
theirs, ranks by the sum of the similarities of all pairs (late fusion).

Where no rows have both a and b, there is a chain of modalities between them. The two neighbours in it with the most rows are
compared; what lies before and after them is translated link by link.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.arguments import Count, check_choice, check_number, check_whole, seed_of
from calmrl._support.linalg import numpy_eigh
from calmrl._support.parsing import reason_of
from calmrl._support.tensor_files import load_state, save_state
from calmrl.aligner.features import RANK, fit_kernel, fit_linear
from calmrl.aligner.rows import check_modalities
from calmrl.aligner.storage import MAP_PARTS, feature_map_of
from calmrl.arrays import Array, Views, blocks_of_rows, check, to_tensor
from calmrl.baselines.registry import BASELINES
from calmrl.data.patterns import connected, rows_together
from calmrl.errors import InputError
from calmrl.imputers.holes import Within, fit_within
from calmrl.latent.rows import working_dtype

LEAST = 2  # rows that must have both of two modalities before anything is learned from them directly
EMBED_BYTES = 1 << 27
FEATURES = ("linear", "kernel")
NUMBERS = {"ridge": (0, np.inf), "power": (0, np.inf), "whitening": (0, 1)}  # arguments: least and largest value
WHOLE = {"landmarks": 2, "directions": 1, "nearest": 1, "anchors": 1}  # arguments: least value
B = TypeVar("B", bound="Baseline")


@dataclass(frozen=True)
class TrainingFeatures:
    """Features of the training rows: `values[m]` is (N, r_m), 0 in rows that lack m."""

    names: tuple[str, ...]
    values: list[Tensor]
    present: Tensor  # (N, k)

    @property
    def together(self) -> np.ndarray:
        """(k, k) rows that have both modalities."""
        return rows_together(self.present.numpy())

    def of(self, m: int) -> Tensor:
        """The rows that have modality m."""
        return self.values[m][self.present[:, m]]

    def both(self, a: int, b: int) -> tuple[Tensor, Tensor]:
        """Modalities a and b of the rows that have both."""
        rows = self.present[:, a] & self.present[:, b]
        return self.values[a][rows], self.values[b][rows]


@dataclass(kw_only=True, eq=False, repr=False)
class Baseline(ABC, BaseEstimator):
    """Modalities in, unit vectors out, learned in closed form from incomplete rows.

    A subclass learns tensors from features and gives the vectors of one modality; an item has the sum over what it has,
    scaled to unit length.
    """

    name: ClassVar[str]  # in BASELINES
    unit_first: ClassVar[bool] = True  # whether vectors of one modality have unit length before they are added

    features: Literal["linear", "kernel"] = "kernel"
    unit_rows: bool = True
    landmarks: Count = 2000
    random_state: int | None = 0

    whitening = 0.0  # an argument of some
    within_ = Within()  # completes holes inside a modality

    @abstractmethod
    def _learn(self, rows: TrainingFeatures) -> dict[str, Tensor]:
        """What is learned from the features, by name."""

    @abstractmethod
    def _vectors(self, m: int, f: Tensor) -> Tensor:
        """(n, width_) of features of modality m."""

    @property
    @abstractmethod
    def width_(self) -> int:
        """Width of the embedding."""

    @torch.no_grad()
    def fit(self: B, z: Mapping[str, Array], present: Array | None = None) -> B:
        """Learn from rows with any of the modalities.

        Parameters
        ----------
        z : dict
            Modality -> (N, d_m), NumPy or torch.
        present : bool array (N, k), optional
            By default a row that is entirely NaN is missing. One that is partly NaN has holes: they are completed from the
            other entries of the modality, by a latent model of it alone, as in `Aligner`.
        """
        self._check_arguments()
        views = check(z, present, min_rows=1, holes=True)
        held = zip(views.names, views.rows(0, len(views)), views.present.unbind(1), strict=True)
        self.within_ = fit_within(
            {name: values.detach()[has] for name, values, has in held if values is not None and name in views.holes},
            self.random_state,
        )
        views = self.within_.whole(views)
        order = sorted(range(len(views.names)), key=lambda m: views.names[m])  # so that their order does not matter
        self.modalities_ = views.names  # in the order of the input
        self.names_ = tuple(views.names[m] for m in order)  # in the order of the parts below
        mask = views.present[:, order].cpu()
        check_linked(self.names_, mask)
        arrays = [to_tensor(views.arrays[name]).detach().cpu() for name in self.names_]
        observed = [array[mask[:, m]].double() for m, array in enumerate(arrays)]
        generator = torch.Generator().manual_seed(seed_of(self.random_state))
        self.feature_maps_ = [
            fit_linear(x, bool(self.unit_rows))
            if self.features == "linear"
            else fit_kernel(x, bool(self.unit_rows), generator, self.landmarks)
            for x in observed
        ]
        values = []
        for m, x in enumerate(observed):
            f = self._features(m, x)
            values.append(f.new_zeros(len(mask), f.shape[1]).index_put((mask[:, m].nonzero()[:, 0],), f))
        rows = TrainingFeatures(self.names_, values, mask)
        self.together_ = rows.together
        self.routes_ = routes(self.together_)
        self.learned_ = self._learn(rows)
        return self

    def _check_arguments(self) -> None:
        check_choice("features", self.features, FEATURES)
        if not isinstance(self.unit_rows, (bool, np.bool_)):
            raise InputError(f"unit_rows must be True or False; got {self.unit_rows!r}")
        for name, value in self.get_params().items():
            if name in NUMBERS:
                check_number(name, value, *NUMBERS[name])
            elif name in WHOLE:
                check_whole(name, value, WHOLE[name])

    def _features(self, m: int, x: Tensor) -> Tensor:
        """(n, r_m) float64."""
        feature_map = self.feature_maps_[m]
        return feature_map.project(x, feature_map.projection * feature_map.scale(self.whitening))

    @torch.no_grad()
    def embed(self, z: Mapping[str, Array], present: Array | None = None) -> Array:
        """Unit vectors (N, width_) from whatever each row has; missing modalities may be left out of the dict.

        An item about which nothing is known has the vector zero. NumPy in, NumPy out; torch in, torch out.
        """
        check_is_fitted(self)
        widths = self.widths_
        wide = [widths[name] for name in self.names_]
        views = self.within_.whole(check(z, present, names=self.names_, widths=wide, holes=True))
        largest = max(max(len(feature_map.landmarks), len(feature_map.centre)) for feature_map in self.feature_maps_)
        blocks = blocks_of_rows(len(views), 32 * max(largest, self.width_), EMBED_BYTES)
        parts = [self._embed_rows(views, start, stop) for start, stop in blocks]
        vectors = torch.cat(parts) if parts else torch.zeros((0, self.width_))
        vectors = vectors.to(views.present.device, working_dtype(views))
        return vectors if isinstance(views.given(), Tensor) else vectors.numpy()

    def _embed_rows(self, views: Views, start: int, stop: int) -> Tensor:
        present = views.present[start:stop].cpu()
        total = torch.zeros((stop - start, self.width_), dtype=torch.float64)
        for m, values in enumerate(views.rows(start, stop)):
            has = present[:, m]
            if values is not None and has.any():
                vectors = self._vectors(m, self._features(m, values.detach().cpu()[has].double()))
                total[has] += normalize(vectors, dim=1) if self.unit_first else vectors
        return normalize(total, dim=1)

    def similarity(self, queries: Mapping[str, Array], gallery: Mapping[str, Array]) -> Array:
        """Cosines (Q, G) between items with any modalities; missing ones are NaN rows or left out of the dict."""
        left, right = self.embed(queries), self.embed(gallery)
        if isinstance(left, Tensor) != isinstance(right, Tensor):
            raise InputError("queries and gallery mix NumPy arrays and torch tensors; pass one kind")
        return left @ right.T

    @property
    def widths_(self) -> dict[str, int]:
        """Modality -> width of its input."""
        widths = {
            name: len(feature_map.centre) for name, feature_map in zip(self.names_, self.feature_maps_, strict=True)
        }
        return {name: widths[name] for name in self.modalities_}

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a folder with baseline.json and baseline.safetensors, which `load_baseline` reads; no pickle."""
        check_is_fitted(self)
        save_state(to_state(self), path, overwrite, name="baseline")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "learned_")


class OneSpace(Baseline):
    """A baseline that maps the features of every modality into one space: f^m map_m + bias_m."""

    def _vectors(self, m: int, f: Tensor) -> Tensor:
        return f @ self.learned_[f"map.{self.names_[m]}"] + self.learned_[f"bias.{self.names_[m]}"]

    @property
    def width_(self) -> int:
        """Width of the space."""
        return len(self.learned_[f"bias.{self.names_[0]}"])


def check_linked(names: tuple[str, ...], present: Tensor) -> None:
    """Modalities that no row has or that nothing links are errors; pairs that never meet are a warning."""
    together = rows_together(present.numpy())
    check_modalities("a baseline", names, together.diagonal().tolist())
    first, *others = connected(together, LEAST)
    if others:
        apart = ", ".join(names[m] for m in sorted(m for group in others for m in group))
        raise InputError(
            f"fewer than {LEAST} rows link {apart} with {', '.join(names[m] for m in first)}, also through a third "
            "modality, so nothing can be learned between them; add rows that have both, or fit them separately"
        )
    unseen = [f"{names[a]} and {names[b]}" for a, b in combinations(range(len(names)), 2) if together[a, b] < LEAST]
    if unseen:
        warnings.warn(
            f"fewer than {LEAST} rows have both {'; nor '.join(unseen)}: they are aligned through other modalities only",
            UserWarning,
            stacklevel=4,
        )


def chain(together: np.ndarray, a: int, b: int) -> list[int]:
    """The modalities from a to b, of which any two neighbours meet in rows: as few as possible, then by most rows.

    Examples
    --------
    >>> chain(np.array([[9, 0, 5], [0, 9, 4], [5, 4, 9]]), 0, 1)
    [0, 2, 1]
    """
    best: dict[int, tuple[float, list[int]]] = {a: (np.inf, [a])}
    edge = [a]
    while b not in best and edge:
        reached: dict[int, tuple[float, list[int]]] = {}
        for m in edge:
            rows, path = best[m]
            for n in range(len(together)):
                width = min(rows, together[m, n])
                if n not in best and width >= LEAST and (n not in reached or width > reached[n][0]):
                    reached[n] = (width, [*path, n])
        best |= reached
        edge = sorted(reached)
    return best[b][1]


def covariance(x: Tensor, y: Tensor) -> Tensor:
    """(r, s) of the columns of two sides of the same rows; 0 without rows."""
    if not len(x):
        return x.new_zeros(x.shape[1], y.shape[1])
    return (x - x.mean(0)).T @ (y - y.mean(0)) / len(x)


def inverse_root(covariance: Tensor, ridge: float) -> Tensor:
    """(C + ridge mean(diag C) I)^(-1/2); directions in which there is nothing stay out."""
    values, vectors = numpy_eigh((covariance + covariance.T) / 2)
    values = values.clamp(min=0) + ridge * covariance.diagonal().mean()
    there = values > RANK * values.max()
    return (vectors * torch.where(there, torch.where(there, values, 1.0).rsqrt(), 0.0)) @ vectors.T


def to_state(baseline: Baseline) -> dict[str, Any]:
    """{"meta": json-able, "tensors": name -> tensor} of a fitted baseline."""
    tensors = {f"learned.{key}": tensor for key, tensor in baseline.learned_.items()}
    for name, feature_map in zip(baseline.names_, baseline.feature_maps_, strict=True):
        tensors |= {f"lift.{name}.{part}": getattr(feature_map, part) for part in MAP_PARTS}
    within, held = baseline.within_.state()
    tensors |= held
    meta = {
        "baseline": baseline.name,
        "arguments": baseline.get_params(),
        "modalities": list(baseline.modalities_),
        "together": baseline.together_.tolist(),
        **({"within": within} if within else {}),
    }
    return {"meta": meta, "tensors": tensors}


def from_state(state: dict[str, Any], origin: str = "a saved baseline") -> Baseline:
    """The inverse of `to_state`; `origin` names it in errors."""
    meta, tensors = state["meta"], state["tensors"]
    try:
        baseline: Baseline = BASELINES[meta["baseline"]](**meta["arguments"])
        baseline.modalities_ = tuple(meta["modalities"])
        baseline.names_ = tuple(sorted(meta["modalities"]))
        baseline.feature_maps_ = [feature_map_of(name, bool(baseline.unit_rows), tensors) for name in baseline.names_]
        baseline.together_ = np.array(meta["together"], dtype=np.int64).reshape(len(baseline.names_), -1)
        baseline.routes_ = routes(baseline.together_)
        baseline.within_ = Within.from_state(meta.get("within", {}), tensors)
        prefix = "learned."
        baseline.learned_ = {
            key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)
        }
        one = {name: torch.zeros((1, width)) for name, width in baseline.widths_.items()}
        baseline.embed(one)  # parts that do not fit each other are found here
        return baseline
    except Exception as error:  # damaged numbers make constructors raise anything
        raise InputError(f"{origin} is incomplete ({reason_of(error)}); save it again") from error


def load_baseline(path: str | os.PathLike[str]) -> Baseline:
    """Read what `save` of a baseline wrote.

    Examples
    --------
    >>> load_baseline("my-cca").similarity(queries, gallery)  # doctest: +SKIP
    """
    return from_state(load_state(path, name="baseline"), f"the saved baseline in {path}")


def routes(together: np.ndarray) -> dict[tuple[int, int], list[int]]:
    """(a, b) -> the modalities that a goes through until it meets b: the last of routes[a, b] and of routes[b, a] are compared.

    Examples
    --------
    >>> routes(np.array([[9, 0, 5], [0, 9, 4], [5, 4, 9]]))[1, 0]
    [1, 2]
    """
    found = {}
    for a, b in combinations(range(len(together)), 2):
        path = chain(together, a, b)
        links = [int(together[m, n]) for m, n in pairwise(path)]
        strongest = links.index(max(links))
        found[a, b], found[b, a] = path[: strongest + 1], path[:strongest:-1]
    return found


class Pairwise(Baseline):
    """A baseline that has a block of numbers per pair of modalities."""

    @abstractmethod
    def _block(self, a: int, b: int, f: Tensor) -> Tensor:
        """(n, r) of features of modality a, to be compared with b; no row is longer than one."""

    @abstractmethod
    def _block_width(self, a: int, b: int) -> int:
        """r, the same for (b, a)."""

    @property
    def width_(self) -> int:
        """Width of the embedding: that of all blocks, and a number per modality."""
        k = len(self.names_)
        return sum(self._block_width(a, b) for a, b in combinations(range(k), 2)) + k

    def _vectors(self, m: int, f: Tensor) -> Tensor:
        k = len(self.names_)
        blocks = []
        for a, b in combinations(range(k), 2):
            if m in (a, b):
                blocks.append(self._block(m, b if m == a else a, f))
            else:
                blocks.append(f.new_zeros(len(f), self._block_width(a, b)))
        vectors = torch.cat(blocks, dim=1) / (k - 1) ** 0.5
        rest = f.new_zeros(len(f), k)
        left = 1 - vectors.square().sum(1)
        rest[:, m] = torch.where(left > RANK, left.clamp(min=RANK).sqrt(), 0.0)  # less is rounding
        return torch.cat([vectors, rest], dim=1)
