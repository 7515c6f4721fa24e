"""Choosing by cross-validation: fit on all folds but one, and let the rows of that one find each other.

The score of a candidate is the mean over directions a->b of

    mean over queries of 1 / rank, times log(gallery),

where queries are the held-out rows that have a and b, and the gallery is all held-out rows that have b. The rank is that of
the own row, or of the best row that is relevant to the query where rows say which others count. Principal
directions are computed once per fold and kind of features; whitenings, latents and priors share them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
import torch
from torch import Tensor

from calmrl.aligner.candidates import Candidate
from calmrl.aligner.lift import Lift, fit_kernel, fit_linear
from calmrl.aligner.own_scores import OwnScores, own_scores
from calmrl.aligner.row_sample import Rows
from calmrl.aligner.space import Space, fit_space, source_of_features
from calmrl.metrics.own_items import Own, own_items
from calmrl.metrics.ranks import ranks_of_scores


@dataclass(frozen=True)
class FoldDirection:
    """What the queries of one direction found: the (expected) rank of each, and the size of their gallery.

    `own` holds more about queries to which several items are relevant; only `outcome(..., every=True)` computes it.
    """

    ranks: np.ndarray  # (n,) float64, from 1
    gallery: int
    own: OwnScores | None = None


Outcome = dict[tuple[int, int], FoldDirection]  # (asked with, asked for) -> what was found


@dataclass
class Fold:
    """Training and held-out rows, with the features already computed from them."""

    names: list[str]
    train: Rows
    held: Rows
    seed: int
    landmarks: int
    spaces: dict[Candidate, Space] = field(default_factory=dict)
    _lifted: dict[tuple[str, bool], tuple[list[Lift], list[Tensor], list[Tensor]]] = field(default_factory=dict)

    def bare(self) -> Fold:
        """The rows alone, to be sent elsewhere."""
        return Fold(self.names, self.train, self.held, self.seed, self.landmarks)

    def lifted(self, features: str, unit: bool) -> tuple[list[Lift], list[Tensor], list[Tensor]]:
        """(lifts, features of training rows, features of held-out rows), before whitening."""
        key = (features, unit)
        if key not in self._lifted:
            lifts = fit_lifts(self.train, features, unit, self.seed, self.landmarks)
            train, held = ([lift(rows.of(m)) for m, lift in enumerate(lifts)] for rows in (self.train, self.held))
            self._lifted[key] = (lifts, train, held)
        return self._lifted[key]

    def whitened(self, candidate: Candidate) -> tuple[list[Tensor], list[Tensor]]:
        """Whitened features of training and held-out rows."""
        lifts, *parts = self.lifted(candidate.features, candidate.unit_rows)
        scales = [lift.scale(candidate.whitening) for lift in lifts]
        train, held = ([f * s.to(f) for f, s in zip(part, scales, strict=True)] for part in parts)
        return train, held

    def evaluate(self, candidate: Candidate) -> Outcome:
        """Fit on the training rows and rank the held-out ones."""
        train, _ = self.whitened(candidate)
        source = source_of_features(self.names, train, self.train.present, shared=False)
        space = fit_space(source, candidate, self.seed)
        self.spaces[candidate] = space
        return self.look(space, candidate)

    def look(self, space: Space, candidate: Candidate, every: bool = False) -> Outcome:
        """What the held-out rows find in a space of the features of this candidate."""
        _, held = self.whitened(candidate)
        return outcome([space.unit(m, f) for m, f in enumerate(held)], self.held.present, self.held.relevant, every)


def fit_lifts(rows: Rows, features: str, unit: bool, seed: int, landmarks: int) -> list[Lift]:
    """One lift per modality, from the rows that have it."""
    if features == "linear":
        return [fit_linear(rows.of(m), unit) for m in range(len(rows.z))]
    generator = torch.Generator().manual_seed(seed)
    return [fit_kernel(rows.of(m), unit, generator, landmarks) for m in range(len(rows.z))]


def outcome(unit: list[Tensor], present: Tensor, relevant: np.ndarray | None = None, every: bool = False) -> Outcome:
    """Ranks for every direction with at least one query and two gallery items; `unit[m]` are the rows that have m.

    `relevant` says which rows count for each other, as in `Rows`. With `every`, all relevant items are looked at, not the
    best alone.
    """
    directions: Outcome = {}
    ids = _row_ids(relevant, len(present))
    number = present.long().cumsum(0) - 1
    for a, b in permutations(range(len(unit)), 2):
        both = (present[:, a] & present[:, b]).nonzero()[:, 0]
        gallery = unit[b]
        if not len(both) or len(gallery) < 2:
            continue
        queries = unit[a][number[both, a]]
        asked, there = ids[both.cpu()], ids[present[:, b].cpu()]
        if relevant is None:  # every query has its own row alone
            every_item, place = torch.arange(len(gallery)), number[both, b].cpu()
            own = Own(every_item, every_item, place, place + 1)
        else:
            own = own_items(asked.tolist(), there.tolist(), len(queries), len(gallery))

        def scores(start: int, stop: int, queries: Tensor = queries, gallery: Tensor = gallery) -> Tensor:
            return queries[start:stop] @ gallery.T

        ranks = ranks_of_scores(scores, len(queries), own, step=1024)
        several = None
        if every and len(there.unique()) < len(there):
            same = (asked[:, None] == there).to(gallery.device)
            several = own_scores(queries @ gallery.T, same, number[both, b])
        directions[a, b] = FoldDirection(ranks.expected().numpy(), len(gallery), several)
    return directions


def _row_ids(relevant: np.ndarray | None, rows: int) -> Tensor:
    """(rows,) equal where rows count for each other."""
    alone = -1 - torch.arange(rows)
    if relevant is None:
        return alone
    numbers = torch.from_numpy(relevant)
    return torch.where(numbers < 0, alone, numbers)


def score(outcomes: Iterable[Outcome]) -> float:
    """The score of a candidate over some folds; 0 where there was nothing to find."""
    per: dict[tuple[int, int], list[FoldDirection]] = {}
    for one in outcomes:
        for key, direction in one.items():
            per.setdefault(key, []).append(direction)
    means = []
    for directions in per.values():
        gains = np.concatenate([math.log(d.gallery) / d.ranks for d in directions])
        means.append(float(gains.mean()))
    return float(np.mean(means)) if means else 0.0
