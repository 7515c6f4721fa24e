"""What training reads: rows of feature sets, brought to one list of modalities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.patterns import patterns
from calmrl.errors import InputError


@dataclass
class Source:
    """Some rows of a feature set. `weight` is how often a row comes per epoch: 2 is twice, 0.5 every other epoch."""

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

    def __len__(self) -> int:
        return len(self.rows)

    def fetch(self, wanted: np.ndarray, present: np.ndarray, epoch: int) -> dict[str, torch.Tensor]:
        """Values of these of my rows, (n, d) per modality; 0 where `present` is False. An observed NaN is an error."""
        inputs = {}
        for j, name in enumerate(self.names):
            values = np.zeros((len(wanted), self.widths[name]), dtype=np.float32)
            has = np.flatnonzero(present[:, j])
            if len(has):
                values[has] = self.z[name][self.rows[wanted[has]]]
                bad = has[~np.isfinite(values[has]).all(axis=1)]
                if len(bad):
                    raise InputError(
                        f"source {self.name}: {name} of row {self.ids[wanted[bad[0]]]!r} is marked present but holds "
                        "NaN or infinity; mark it missing, or extract it again"
                    )
            inputs[name] = torch.from_numpy(values)
        return inputs

    def check(self) -> None:
        """Read every row once, so that a bad one is found now."""
        for start in range(0, len(self), 4096):
            rows = np.arange(start, min(start + 4096, len(self)))
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


def make_source(
    name: str, data: FeatureSet, rows: np.ndarray, present: np.ndarray, widths: Mapping[str, int], weight: float = 1.0
) -> Source:
    """The `rows` of `data`; `present` (N, its own modalities) may hide more than the data do.

    `widths` are all modalities of the training with their widths. Rows that have none of them cannot be used;
    `unusable` counts them.
    """
    rows = np.asarray(rows)
    mine = np.zeros((len(rows), len(widths)), dtype=bool)
    for j, (modality, width) in enumerate(widths.items()):
        if modality in data.z:
            found = data.z[modality].shape[1]
            if found != width:
                raise InputError(f"source {name}: {modality} has width {found}, but another source has {width}")
            mine[:, j] = present[rows, data.names.index(modality)]
    usable = mine.any(axis=1)
    rows = rows[usable]
    return Source(
        name,
        data.z,
        mine[usable],
        rows,
        data.ids[rows],
        tuple(widths),
        dict(widths),
        weight,
        int((~usable).sum()),
        rows,
    )


def widths_of(sources: Mapping[str, FeatureSet], modalities: Sequence[str] | None) -> dict[str, int]:
    """Modality -> width over all feature sets, in the order given, else in the order of first appearance."""
    found: dict[str, int] = {}
    for data in sources.values():
        for name, array in data.z.items():
            found.setdefault(name, array.shape[1])
    for name in modalities or ():
        if name not in found:
            raise InputError(f'no source has the modality "{name}"; there are {", ".join(found)}')
    names = list(modalities or found)
    if len(names) < 2:
        raise InputError(f"training needs at least two modalities; got {', '.join(names) or 'none'}")
    return {name: found[name] for name in names}


def pattern_counts(sources: Sequence[Any]) -> list[dict[str, Any]]:
    """How many rows of each source have which modalities."""
    return [
        {"source": source.name, "has": list(kind.modalities), "rows": kind.rows, "weight": source.weight}
        for source in sources
        for kind in patterns(source.present, source.names)
    ]


POWERS = {"scale": 0.0, "whiten": 0.25}
SMALLEST = 1e-6  # of the largest eigenvalue: directions below it are left out


def standardization(
    sources: Sequence[Source], how: str, most: int = 100_000
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(centre (d,), map (d, r)) per modality from the observed training rows, or evenly spaced ones if there are many.

    With C = V diag(l) V^T the covariance of the rows, the r directions in which they vary, and m the mean of l,

        map = c V diag((l + m)^-power),   power 0 for "scale", 1/4 for "whiten",

    c such that the entries of (x - centre) map have mean square 1. "scale" only turns and scales the features, which
    loses nothing of the training rows and leaves fewer columns; "whiten" also evens the directions out, mildly.
    """
    power, centres, maps = POWERS[how], {}, {}
    for j, name in enumerate(sources[0].names):
        total, square, count = _sums(sources, j, name, most)
        if count == 0:
            raise InputError(f"no training row has {name}; leave it out of modalities, or add a source")
        centre = total / count
        values, vectors = np.linalg.eigh(square / count - np.outer(centre, centre))
        kept = values > SMALLEST * max(values[-1], 1e-30)
        if not kept.any():
            raise InputError(f"{name} is the same in every training row; leave it out of modalities")
        values, vectors = values[kept], vectors[:, kept]
        directions = vectors * (values + values.mean()) ** -power
        scale = 1 / np.sqrt(np.mean(values * (values + values.mean()) ** (-2 * power)))
        centres[name] = torch.from_numpy(centre).float()
        maps[name] = torch.from_numpy(scale * directions).float()
    return centres, maps


def _sums(sources: Sequence[Source], j: int, name: str, most: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(sum of x, sum of x x^T, number of rows) over the rows that have modality j."""
    width = sources[0].widths[name]
    total, square, count = np.zeros(width), np.zeros((width, width)), 0
    pace = max(1, -(-sum(map(len, sources)) // most))
    for source in sources:
        able = np.flatnonzero(source.present[:, j])[::pace]
        only = np.zeros((1, len(source.names)), dtype=bool)
        only[0, j] = True
        for rows in np.array_split(able, -(-len(able) // 4096)) if len(able) else ():
            x = source.fetch(rows, only.repeat(len(rows), axis=0), 0)[name].numpy().astype(np.float64)
            total, square, count = total + x.sum(axis=0), square + x.T @ x, count + len(x)
    return total, square, count
