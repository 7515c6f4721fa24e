"""The choice as a whole: folds, search, refinement, and what to expect of the winner."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calmrl._support.engine import Engine
from calmrl.aligner.candidates import Candidate, Grid
from calmrl.aligner.crossvalidation import Fold, Outcome, score
from calmrl.aligner.expected import Evidence, dispersion, growth
from calmrl.aligner.refine import steps_worth
from calmrl.aligner.row_sample import Rows, folds_of
from calmrl.aligner.search import CandidateSearch
from calmrl.aligner.spread_folds import SpreadFolds

SEARCH_ROWS = 2400  # rows of the cross-validation: 1,600 to learn from and 800 to find, three times


@dataclass(frozen=True)
class Choice:
    """What was chosen, what else was tried, and what held-out rows found with it."""

    candidate: Candidate
    refine_steps: int
    scores: dict[Candidate, tuple[int, float]]  # folds that it ran on, and its score there
    evidence: dict[str, Evidence]
    gain: float  # what the final fit adds to the logit of recall by having more rows than a fold
    dispersion: float  # how much more recall varies between folds than between queries
    rows: int  # that the cross-validation used
    refined: dict[int, float]  # steps -> score, where refinement was tried

    def summary(self, latent_dim: int) -> dict[str, Any]:
        """As a plain dict: the choice, and all candidates from the best to the worst, those that ran on one fold last."""
        ranked = sorted(self.scores.items(), key=lambda pair: (-pair[1][0], -pair[1][1]))
        return {
            **self.candidate.row(),
            "latent_dim": latent_dim,
            "refine_steps": self.refine_steps,
            "score": self.scores[self.candidate][1] if self.scores else None,
            "rows": self.rows,
            "candidates": [{**candidate.row(), "score": value, "folds": folds} for candidate, (folds, value) in ranked],
            "refinement": [{"steps": steps, "score": value} for steps, value in self.refined.items()],
        }


def choose(
    names: list[str],
    rows: Rows,
    total: int,
    grid: Grid,
    candidates: int,
    folds: int,
    landmarks: int,
    refine: str,
    seed: int,
    engine: Engine | None = None,
) -> Choice:
    """Search the grid on at most SEARCH_ROWS of the rows; `total` is how many rows the final fit has.

    An engine evaluates candidates and folds at the same time, with the same choice.
    """
    rows = _part(rows, seed)
    home = folds_of(rows, folds, seed)
    index = [torch.from_numpy(np.flatnonzero(home == fold)) for fold in range(folds)]
    if min(len(part) for part in index) < 2:
        return _unchosen(grid, f"{len(rows)} rows are too few to be split into {folds} folds")
    parts = [rows.take(part) for part in index]
    learn = [rows.take(torch.from_numpy(np.flatnonzero(home != fold))) for fold in range(folds)]
    whole = [Fold(names, learn[f], parts[f], seed, landmarks) for f in range(folds)]
    search = CandidateSearch(whole, candidates, engine)
    winner = search.run(grid)
    if not any(search.tried[winner]):
        return _unchosen(grid, "no held-out row has two modalities, so that nothing can look for anything")
    judged = [_judged(search, fold) for fold in range(folds)]
    steps, refined, better = steps_worth(search.folds, winner, search.tried[winner], refine, seed)
    smaller = SpreadFolds([Fold(names, parts[f - 1], parts[f], seed, landmarks) for f in range(folds)], engine)
    smaller.ahead([(f, winner) for f in range(folds)])
    gain = growth(
        [smaller.evaluate(f, winner) for f in range(folds)],
        search.tried[winner],
        (folds - 1),
        total / float(np.mean([len(fold.train) for fold in search.folds])),
    )
    return Choice(
        winner,
        steps,
        {candidate: (len(outcomes), score(outcomes)) for candidate, outcomes in search.tried.items()},
        _evidence(names, better if steps else judged),
        gain,
        dispersion(better if steps else judged),
        len(rows),
        refined,
    )


def _judged(search: CandidateSearch, fold: int) -> Outcome:
    """What this fold finds with the candidate that the others chose."""
    candidate = search.best(without=fold)
    if search.folds[fold].held.relevant is None:
        return search.tried[candidate][fold]
    return search.folds[fold].look(search.folds[fold].spaces[candidate], candidate, every=True)


def _part(rows: Rows, seed: int) -> Rows:
    """Whole groups in random order until SEARCH_ROWS are reached."""
    if len(rows) <= SEARCH_ROWS:
        return rows
    _, inverse = np.unique(rows.groups, return_inverse=True)
    order = np.random.default_rng(seed).permutation(int(inverse.max()) + 1)
    taken = np.argsort(order[inverse], kind="stable")[:SEARCH_ROWS]
    return rows.take(torch.from_numpy(np.sort(taken)))


def _evidence(names: list[str], outcomes: list[Outcome]) -> dict[str, Evidence]:
    keys = sorted({key for one in outcomes for key in one})
    return {f"{names[a]}->{names[b]}": Evidence.of([one[a, b] for one in outcomes if (a, b) in one]) for a, b in keys}


def _unchosen(grid: Grid, why: str) -> Choice:
    """The first candidate, where held-out rows cannot say anything."""
    form = grid.features[0]
    candidate = grid.first(form, grid.unit_rows[0])
    warnings.warn(
        f"nothing was chosen by cross-validation and nothing is expected: {why}; used {candidate.row()}",
        UserWarning,
        stacklevel=4,
    )
    return Choice(candidate, 0, {}, {}, 0.0, 1.0, 0, {})
