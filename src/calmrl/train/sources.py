"""What training reads: rows of feature sets, brought to one list of modalities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calmrl.data.features import FeatureSet
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
    def join(parts: Sequence[tuple[np.ndarray, dict[str, torch.Tensor]]], n: int) -> dict[str, torch.Tensor]:
        """(places in the batch, what `fetch` gave for them) of several sources -> the n rows of the batch in order."""
        if len(parts) == 1:
            return parts[0][1]
        whole = {}
        for name, first in parts[0][1].items():
            whole[name] = first.new_empty(n, *first.shape[1:])
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
    counted = []
    for source in sources:
        patterns, counts = np.unique(source.present, axis=0, return_counts=True)
        for pattern, count in zip(patterns, counts, strict=True):
            has = [name for name, seen in zip(source.names, pattern, strict=True) if seen]
            counted.append({"source": source.name, "has": has, "rows": int(count), "weight": source.weight})
    return counted


def moments(sources: Sequence[Source], most: int = 100_000) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Centre and scale per modality over the observed training rows (evenly spaced ones if there are more than `most`).

    After (x - centre) * scale the mean square of the entries is 1.
    """
    names, widths = sources[0].names, sources[0].widths
    total = {name: np.zeros(widths[name]) for name in names}
    square = {name: np.zeros(widths[name]) for name in names}
    count = dict.fromkeys(names, 0)
    for source in sources:
        step = max(1, -(-sum(map(len, sources)) // most))
        for start in range(0, len(source), 4096 * step):
            chosen = np.arange(start, min(start + 4096 * step, len(source)), step)
            values = source.fetch(chosen, source.present[chosen], 0)
            for j, name in enumerate(names):
                has = values[name].numpy()[source.present[chosen, j]].astype(np.float64)
                total[name] += has.sum(axis=0)
                square[name] += (has**2).sum(axis=0)
                count[name] += len(has)
    never = [name for name in names if count[name] == 0]
    if never:
        raise InputError(f"no training row has {', '.join(never)}; leave it out of modalities, or add a source")
    centre = {name: total[name] / count[name] for name in names}
    spread = {name: float(np.mean(square[name] / count[name] - centre[name] ** 2)) for name in names}
    scale = {name: 1.0 / np.sqrt(max(value, 1e-12)) for name, value in spread.items()}
    return {name: torch.from_numpy(value).float() for name, value in centre.items()}, scale
