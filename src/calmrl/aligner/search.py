"""The search over candidates, as a race: whoever is clearly behind on the first fold does not run on the others.

A candidate is behind where its queries on the first fold find their items later than those of the leader, by more than
RACE standard errors of the paired difference, or never earlier. The winner, all that came near it, and therefore what
to expect of new items, are judged on all folds. An engine evaluates candidates ahead of the race, which then looks at them in
the same order as without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from calmrl._support.engine import Engine
from calmrl.aligner.candidates import Candidate, Grid
from calmrl.aligner.crossvalidation import Fold, Outcome, score
from calmrl.aligner.spread_folds import SpreadFolds

BEHIND = 0.8  # features whose first candidate reaches less than this share of the best score are not searched further
RACE = 3.0  # standard errors; queries of one row are not independent, so that they are a little too small
RACE_QUERIES = 100  # with fewer of them, one fold says too little to drop anything


@dataclass
class CandidateSearch:
    """All candidates tried so far: what each found on every fold, or on the first one only."""

    folds: list[Fold]
    most: int  # candidates that may be tried
    engine: Engine | None = None
    tried: dict[Candidate, list[Outcome]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._spread = SpreadFolds(self.folds, self.engine)

    def attempt(self, candidates: Iterable[Candidate]) -> bool:
        """Evaluate those that were not tried before, up to `most` in all; whether there was any."""
        new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self.tried]
        new = new[: self.most - len(self.tried)]
        self._spread.ahead([(0, candidate) for candidate in new])
        if self.engine is not None:
            near = [candidate for candidate in new if not behind(self._spread.evaluate(0, candidate), self._leader())]
            self._spread.ahead(list(product(range(1, len(self.folds)), near)))
        for candidate in new:
            self.tried[candidate] = self._race(candidate)
        return bool(new)

    def _leader(self) -> Outcome:
        """What the best candidate found on the first fold; nothing where none was tried."""
        return self.tried[self.best()][0] if self.tried else {}

    def _race(self, candidate: Candidate) -> list[Outcome]:
        first = self._spread.evaluate(0, candidate)
        if behind(first, self._leader()):
            return [first]
        return [first, *(self._spread.evaluate(number, candidate) for number in range(1, len(self.folds)))]

    def best(self, without: int | None = None, features: str | None = None) -> Candidate:
        """The best candidate, judged by all folds but `without`; the first tried wins ties.

        Candidates that ran on the first fold only count where there are no others.
        """
        among = {c: outcomes for c, outcomes in self.tried.items() if features in (None, c.features)}
        whole = {c: outcomes for c, outcomes in among.items() if len(outcomes) == len(self.folds)}
        scores = {
            candidate: score(one for f, one in enumerate(outcomes) if f != without or not whole)
            for candidate, outcomes in (whole or among).items()
        }
        return max(scores, key=lambda candidate: scores[candidate])

    def run(self, grid: Grid) -> Candidate:
        """Row scaling first, then features; then whitening, latents and prior of features that are not far behind; last, all
        parts of the best once more, for one part may want another value after the others have changed."""
        form = grid.features[0]
        self.attempt(grid.first(form, unit) for unit in grid.unit_rows)
        unit = self.best().unit_rows
        self.attempt(grid.first(form, unit) for form in grid.features)
        parts = (grid.whitenings, grid.latents, grid.priors)
        for form in self._not_far_behind():
            self._improve(form, *parts)
        while self._improve(self.best().features, *parts, grid.scalings):
            pass
        return self.best()

    def _improve(self, form: str, *parts: Callable[[Candidate], list[Candidate]]) -> bool:
        """Try other values of one part after the other, each from the best so far; whether there was any to try."""
        return any([self.attempt(values(self.best(features=form))) for values in parts])

    def _not_far_behind(self) -> list[str]:
        """Features to search further, the best first."""
        forms = dict.fromkeys(candidate.features for candidate in self.tried)
        scores = {form: self._first_score(self.best(features=form)) for form in forms}
        near = [form for form, reached in scores.items() if reached >= BEHIND * max(scores.values())]
        return sorted(near, key=lambda form: -scores[form])

    def _first_score(self, candidate: Candidate) -> float:
        return score(self.tried[candidate][:1])


def behind(mine: Outcome, leader: Outcome) -> bool:
    """Whether `mine` is clearly worse than `leader` on the same queries, or nowhere better."""
    gains = [math.log(mine[key].gallery) * (1 / mine[key].ranks - 1 / leader[key].ranks) for key in leader]
    if sum(len(gain) for gain in gains) < RACE_QUERIES:
        return False
    mean = np.mean([gain.mean() for gain in gains])
    error = math.sqrt(sum(gain.var() / len(gain) for gain in gains)) / len(gains)
    return bool(mean + RACE * error <= 0)
