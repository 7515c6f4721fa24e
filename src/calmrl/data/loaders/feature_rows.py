"""Rows of feature sets for `Batches`, brought to one list of modalities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from calmrl._support.linalg import principal_directions
from calmrl.arrays import release
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.patterns import patterns
from calmrl.errors import InputError

AT_A_TIME = 4096  # rows that are read together while all of them are looked at


@dataclass
class FeatureRows:
    """Some rows of a feature set; make them with `FeatureRows.of`.

    `weight` is how often a row comes per epoch: 2 is twice, 0.5 every other epoch. `home` numbers the rows in the
    feature set, so that `features.labels[rows.home]` are their labels.
    """

    name: str
    z: Mapping[str, np.ndarray]  # (N, d) each, possibly memory-mapped
    present: np.ndarray  # (n, k) bool of the rows below, one column per modality of the training
    rows: np.ndarray  # (n,) row numbers in z
    ids: np.ndarray  # (n,)
    names: tuple[str, ...]
    widths: dict[str, int]
    weight: float = 1.0
    unusable: int = 0
    home: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # (n,) rows of the feature set

    @classmethod
    def of(
        cls,
        features: FeatureSet,
        rows: str | np.ndarray | None = None,
        present: np.ndarray | None = None,
        widths: Mapping[str, int] | None = None,
        *,
        name: str | None = None,
        weight: float = 1.0,
    ) -> FeatureRows:
        """Some rows of a feature set. Rows with none of the modalities are skipped; `unusable` counts them.

        Parameters
        ----------
        features : FeatureSet
        rows : str or ndarray, optional
            A split by name ("train"), a bool mask, or row numbers; all rows by default.
        present : ndarray of bool, shape (N, k), optional
            What may be seen, if that is less than `features.present`.
        widths : mapping of str to int, optional
            Modality -> width of all sources of a training; by default those of these features.
        name : str, optional
            For messages; by default the name of the feature set.
        weight : float
            How often a row comes per epoch.

        Examples
        --------
        >>> from calmrl.datasets import load_dataset
        >>> len(FeatureRows.of(load_dataset("digits"), "test"))
        359
        """
        name = name or features.name or "features"
        chosen = np.arange(len(features)) if rows is None else features.row_numbers(rows)
        if len(np.unique(chosen)) != len(chosen):
            raise InputError(f"source {name}: a row is named more than once; name every row once")
        seen = features.present if present is None else present
        widths = widths or {modality: array.shape[1] for modality, array in features.z.items()}
        mine = np.zeros((len(chosen), len(widths)), dtype=bool)
        for j, (modality, width) in enumerate(widths.items()):
            if modality in features.z:
                own_width = features.z[modality].shape[1]
                if own_width != width:
                    raise InputError(f"source {name}: {modality} has width {own_width}, but another source has {width}")
                mine[:, j] = seen[chosen, features.names.index(modality)]
        usable = mine.any(axis=1)
        chosen, unusable = chosen[usable], int((~usable).sum())
        ids, mine = features.ids[chosen], mine[usable]
        return cls(name, features.z, mine, chosen, ids, tuple(widths), dict(widths), weight, unusable, chosen)

    def __len__(self) -> int:
        return len(self.rows)

    def settings(self) -> str:
        """Values depend on the rows alone."""
        return ""

    def fetch(self, wanted: np.ndarray, present: np.ndarray, epoch: int) -> dict[str, torch.Tensor]:
        """Values of these of my rows, (n, d) per modality; 0 where `present` is False. An observed NaN is an error."""
        inputs = {}
        for j, name in enumerate(self.names):
            values = np.zeros((len(wanted), self.widths[name]), dtype=np.float32)
            has = np.flatnonzero(present[:, j])
            if len(has):
                values[has] = observed = np.asarray(self.z[name][self.rows[wanted[has]]], dtype=np.float32)
                release(self.z[name])  # mapped pages would count as memory of the process
                bad = has[~np.isfinite(observed).all(axis=1)]
                if len(bad):
                    raise InputError(
                        f"source {self.name}: {name} of row {self.ids[wanted[bad[0]]]!r} is marked present but holds "
                        "NaN or infinity; mark it missing, or extract it again"
                    )
            inputs[name] = torch.from_numpy(values)
        return inputs

    def check(self) -> None:
        """Read every row once, so that a bad one is found now."""
        for start in range(0, len(self), AT_A_TIME):
            rows = np.arange(start, min(start + AT_A_TIME, len(self)))
            self.fetch(rows, self.present[rows], 0)

    @staticmethod
    def join(
        parts: Sequence[tuple[np.ndarray, dict[str, torch.Tensor]]], present: np.ndarray
    ) -> dict[str, torch.Tensor]:
        """(places in the batch, what `fetch` gave for them) of several sources -> the rows of the batch in order."""
        if len(parts) == 1:
            return parts[0][1]
        whole = {}
        for name, first in parts[0][1].items():
            whole[name] = first.new_empty(len(present), *first.shape[1:])
            for at, values in parts:
                whole[name][torch.from_numpy(at)] = values[name]
        return whole


def widths_of(sources: Mapping[str, FeatureSet], modalities: Sequence[str] | None) -> dict[str, int]:
    """Modality -> width over all feature sets, in the order given, else in the order of first appearance."""
    widths: dict[str, int] = {}
    for data in sources.values():
        for name, array in data.z.items():
            widths.setdefault(name, array.shape[1])
    for name in modalities or ():
        if name not in widths:
            raise InputError(f'no source has the modality "{name}"; there are {", ".join(widths)}')
    names = list(modalities or widths)
    if len(names) < 2:
        raise InputError(f"training needs at least two modalities; got {', '.join(names) or 'none'}")
    return {name: widths[name] for name in names}


def pattern_counts(sources: Sequence[Any]) -> list[dict[str, Any]]:
    """How many rows of each source have which modalities."""
    return [
        {"source": source.name, "has": list(pattern.modalities), "rows": pattern.rows, "weight": source.weight}
        for source in sources
        for pattern in patterns(source.present, source.names)
    ]


POWERS = {"scale": 0.0, "whiten": 0.25}
SMALLEST = 1e-6  # of the largest eigenvalue: directions below it are dropped


Axes = dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]  # modality -> centre (d,), eigenvalues (r,), vectors (d, r)


def principal_axes(sources: Sequence[FeatureRows], most: int = 100_000) -> Axes:
    """Centre and covariance V diag(l) V^T of every modality, over its observed training rows, or evenly spaced ones if there
    are many; only the r directions in which they vary."""
    axes = {}
    for j, name in enumerate(sources[0].names):
        total, square, count = _sums(sources, j, name, most)
        if count == 0:
            raise InputError(f"no training row has {name}; leave it out of modalities, or add a source")
        centre = total / count
        covariance = torch.from_numpy(square / count - np.outer(centre, centre))
        values, vectors = principal_directions(covariance, len(centre), SMALLEST)
        if values[0] <= SMALLEST * 1e-30:
            raise InputError(f"{name} is the same in every training row; leave it out of modalities")
        kept = vectors.shape[1]
        axes[name] = centre, values[:kept].flip(0).numpy(), vectors.flip(1).numpy()  # the largest last
    return axes


def standardization(axes: Axes, how: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(centre (d,), map (d, r)) per modality from its `principal_axes`.

    With C = V diag(l) V^T the covariance of the rows, the r directions in which they vary, and m the mean of l,

        map = c V diag((l + m)^-power),   power 0 for "scale", 1/4 for "whiten",

    c such that the entries of (x - centre) map have mean square 1. "scale" only turns and scales the features, which
    loses nothing of the training rows and leaves fewer columns; "whiten" also evens the directions out, mildly.
    """
    power, centres, maps = POWERS[how], {}, {}
    for name, (centre, values, vectors) in axes.items():
        directions = vectors * (values + values.mean()) ** -power
        scale = 1 / np.sqrt(np.mean(values * (values + values.mean()) ** (-2 * power)))
        centres[name] = torch.from_numpy(centre).float()
        maps[name] = torch.from_numpy(scale * directions).float()
    return centres, maps


def _sums(sources: Sequence[FeatureRows], j: int, name: str, most: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(sum of x, sum of x x^T, number of rows) over the rows that have modality j."""
    width = sources[0].widths[name]
    total, square, count = np.zeros(width), np.zeros((width, width)), 0
    pace = max(1, -(-sum(map(len, sources)) // most))
    for source in sources:
        having = np.flatnonzero(source.present[:, j])[::pace]
        only = np.arange(len(source.names)) == j
        for rows in np.array_split(having, -(-len(having) // AT_A_TIME)) if len(having) else ():
            present = np.broadcast_to(only, (len(rows), len(only)))
            x = source.fetch(rows, present, 0)[name].numpy().astype(np.float64)
            total, square, count = total + x.sum(axis=0), square + x.T @ x, count + len(x)
    return total, square, count
