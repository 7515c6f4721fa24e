"""The final fit: the chosen candidate on all rows, which may be more than memory holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calmrl.aligner.candidates import Candidate
from calmrl.aligner.lift import Lift
from calmrl.aligner.space import Space, fit_space
from calmrl.convention import Views, blocks_of_rows
from calmrl.data.features.spread_rows import SpreadArrays
from calmrl.imputers.gaussian.moments import Sums, add_up, block_sums, patterns_of
from calmrl.imputers.gaussian.pattern_groups import Pack, pack
from calmrl.imputers.gaussian.row_sources import Source, open_source

FEATURE_BYTES = 1 << 26  # features are computed in blocks of about this size
ROWS_PER_FEATURE = 4  # with more rows in memory, sums by pattern are cheaper than the rows
SUM_BYTES = 1 << 30  # sums by pattern may take this much; more patterns are gone through row by row


@dataclass(frozen=True)
class Lifting:
    """Rows -> whitened features; small enough to be sent to where the rows are."""

    lifts: list[Lift]
    scales: list[Tensor]
    dtype: torch.dtype

    @property
    def widths(self) -> tuple[int, ...]:
        """Features per modality."""
        return tuple(lift.width for lift in self.lifts)

    def blocks(self, views: Views) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """The rows of a chunk as features, a bounded number at a time."""
        for start, stop in blocks_of_rows(len(views), 8 * sum(self.widths), FEATURE_BYTES):
            present = views.present[start:stop]
            yield self._block(views, start, stop, present), present

    def _block(self, views: Views, start: int, stop: int, present: Tensor) -> dict[str, Tensor]:
        block = {}
        for m, values in enumerate(views.rows(start, stop)):
            features = torch.zeros((stop - start, self.widths[m]), dtype=self.dtype, device=present.device)
            if values is not None:
                rows = values.detach()[present[:, m]].to(self.dtype)
                features[present[:, m]] = self.lifts[m](rows) * self.scales[m].to(rows)
            block[views.names[m]] = features
        return block

    def packs(self, views: Views) -> Iterator[Pack]:
        """Blocks of features sorted by pattern."""
        for features, present in self.blocks(views):
            yield pack(list(features.values()), present, self.widths, self.dtype)


@dataclass(frozen=True)
class Lifted:
    """The rows of a source as whitened features, in blocks, as often as wanted."""

    source: Source
    lifting: Lifting

    @property
    def widths(self) -> tuple[int, ...]:
        """Features per modality."""
        return self.lifting.widths

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for views in self.source.chunks():
            yield from self.lifting.blocks(views)


@torch.no_grad()
def _sums_of(views: Views, lifting: Lifting, patterns: list[tuple[bool, ...]]) -> Sums:
    """Sums by pattern of the features of one block of rows."""
    return block_sums(lifting.packs(views), lifting.widths, patterns)


def fit_all(source: Source, lifts: list[Lift], candidate: Candidate, seed: int) -> Space:
    """The space of all rows of all processes; rows are read once where their sums by pattern fit into memory."""
    scales = [lift.scale(candidate.whitening) for lift in lifts]
    lifted = Lifted(source, Lifting(lifts, scales, source.dtype))
    return fit_space(_feature_source(lifted), candidate, seed)


def _feature_source(lifted: Lifted) -> Source:
    source, width = lifted.source, sum(lifted.widths)
    here = source.in_memory or isinstance(source.spread and source.spread.rows, SpreadArrays)
    if here and source.rows <= ROWS_PER_FEATURE * width:
        blocks: list[Any] = list(lifted)
        features = {name: torch.cat([z[name] for z, _ in blocks]) for name in source.names}
        return open_source(features, torch.cat([present for _, present in blocks]))
    patterns = patterns_of(source)
    sizes = [sum(w for w, has in zip(lifted.widths, pattern, strict=True) if has) for pattern in patterns]
    if 8 * sum(size**2 for size in sizes) <= SUM_BYTES:
        parts = source.each_chunk(_sums_of, lifted.lifting, patterns)
        return add_up(replace(source, widths=lifted.widths, spread=None), parts, patterns)
    return open_source(lifted, None)
