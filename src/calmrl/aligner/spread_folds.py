"""Folds of the cross-validation, evaluated wherever an engine works.

A task is one candidate on one fold. A worker keeps the folds that it has seen, with the features that it computed for them,
until another cross-validation begins.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from calmrl._support.engine import Engine
from calmrl.aligner.candidates import Candidate
from calmrl.aligner.crossvalidation import Fold, Outcome
from calmrl.aligner.space import Space

Pair = tuple[int, Candidate]  # number of a fold, candidate

_kept: dict[tuple[str, int], Fold] = {}  # of this worker; all of one cross-validation


@dataclass
class SpreadFolds:
    """What the folds find with candidates: computed when it is asked for, or before, by an engine."""

    folds: list[Fold]
    engine: Engine | None = None
    ready: dict[Pair, Outcome] = field(default_factory=dict)
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def ahead(self, pairs: Sequence[Pair]) -> None:
        """Let the engine evaluate these; without one, nothing is done before it is asked for."""
        if self.engine is None:
            return
        new = [pair for pair in pairs if pair not in self.ready]
        evaluated = self.engine.map(_evaluate, new, self.key, [fold.bare() for fold in self.folds])
        for (number, candidate), (outcome, space) in zip(new, evaluated, strict=True):
            self.ready[number, candidate] = outcome
            self.folds[number].spaces[candidate] = space

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        """What a fold finds with a candidate."""
        if (number, candidate) not in self.ready:
            self.ready[number, candidate] = self.folds[number].evaluate(candidate)
        return self.ready[number, candidate]


@torch.no_grad()
def _evaluate(pair: Pair, key: str, folds: list[Fold]) -> tuple[Outcome, Space]:
    number, candidate = pair
    if any(other != key for other, _ in _kept):
        _kept.clear()
    fold = _kept.setdefault((key, number), folds[number])
    return fold.evaluate(candidate), fold.spaces[candidate]
