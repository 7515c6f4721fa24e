"""The search over candidates, as a race: whoever is clearly behind after a fold does not run on the next.

A candidate is behind where its queries on the folds so far find their items later than those of the leader, by more than
RACE standard errors of the paired difference, or never earlier. The winner, all that came near it, and therefore what
to expect of new items, are judged on all folds. An engine evaluates candidates ahead of the race, which then looks at them in
the same order as without one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.engine import Engine
from calmrl.aligner.base import OWN, Base, Mixture, Sides, Weights, sides_of, weigh
from calmrl.aligner.crossvalidation import DistributedFolds, Fold, Outcome, Rows, folds_of, score
from calmrl.aligner.expected import Evidence, dispersion, learning_gain
from calmrl.aligner.posterior import place
from calmrl.aligner.refine import gains_beyond_noise, refine_space, steps_worth
from calmrl.aligner.space import WIDE, Candidate, Grid
from calmrl.data.patterns import rows_together

if TYPE_CHECKING:
    from calmrl.aligner.estimator import Aligner

BEHIND = 0.8  # features whose first candidate reaches less than this share of the best score are not searched further
FEW = 4  # with so many candidates or fewer, features that are mostly the best come first
STRONGER = 1000.0  # a prior that many modalities want
RACE = 3.0  # standard errors; queries of one row are not independent, so that they are a little too small
RACE_QUERIES = 100  # with fewer of them, one fold says too little to drop anything


@dataclass
class CandidateSearch:
    """All candidates tried so far: what each found on every fold, or on the first ones only."""

    folds: list[Fold]
    most: int  # candidates that may be tried
    engine: Engine | None = None
    tried: dict[Candidate, list[Outcome]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._evaluations = DistributedFolds(self.folds, self.engine)

    def attempt(self, candidates: Iterable[Candidate]) -> bool:
        """Evaluate those that were not tried before, up to `most` in all; whether there was any."""
        new = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self.tried]
        new = new[: self.most - len(self.tried)]
        self._evaluations.ahead([(0, candidate) for candidate in new])
        if self.engine is not None:
            near = [
                candidate for candidate in new if not behind([self._evaluations.evaluate(0, candidate)], self._leader())
            ]
            self._evaluations.ahead(list(product(range(1, len(self.folds)), near)))
        for candidate in new:
            self.tried[candidate] = self._race(candidate)
        return bool(new)

    def _leader(self) -> list[Outcome]:
        """What the best candidate found; nothing where none was tried."""
        return self.tried[self.best()] if self.tried else []

    def _race(self, candidate: Candidate) -> list[Outcome]:
        leader, found = self._leader(), list[Outcome]()
        while len(found) < len(self.folds) and not behind(found, leader):
            found.append(self._evaluations.evaluate(len(found), candidate))
        return found

    def best(self, without: int | None = None, features: str | None = None) -> Candidate:
        """The best candidate, judged by all folds but `without`; the first tried wins ties.

        Candidates that did not run on all folds count where there are no others.
        """
        among = {c: outcomes for c, outcomes in self.tried.items() if features in (None, c.features)}
        whole = {c: outcomes for c, outcomes in among.items() if len(outcomes) == len(self.folds)}
        scores = {
            candidate: score(one for f, one in enumerate(outcomes) if f != without or not whole)
            for candidate, outcomes in (whole or among).items()
        }
        return max(scores, key=lambda candidate: scores[candidate])

    def run(self, grid: Grid) -> Candidate:
        """Row scaling first, then features, of the best of them the second start, and relative representations; then
        whitening, latents and prior of features that are not far behind; last, all parts of the best once more, for one part
        may want another value after the others have changed. With very few candidates, the last features under two priors and
        with the second start, then the others."""
        if self.most <= FEW and len(grid.features) > 1:
            *others, last = (grid.first(form, grid.unit_rows[0]) for form in grid.features)
            strong = [replace(last, prior=prior) for prior in grid.prior if prior == STRONGER]
            self.attempt([last, *strong, *grid.wide_start(last.features, last.unit_rows), *others])
            return self.best()
        form = grid.features[0]
        self.attempt(grid.first(form, unit) for unit in grid.unit_rows)
        unit = self.best().unit_rows
        self.attempt(grid.first(form, unit) for form in grid.features)
        self.attempt(grid.wide_start(self.best().features, unit))
        self.attempt(grid.relatives(self.best()))
        parts = (grid.whitenings, grid.latents, grid.priors)
        for form in self._not_far_behind():
            self._improve(form, *parts, self._beside)
        while self._improve(self.best().features, grid.relatives, *parts, grid.scalings, self._beside):
            pass
        return self.best()

    def _beside(self, chosen: Candidate) -> list[Candidate]:
        """The best with few latents and the best with many side by side: near to each other, they err in different places."""
        alike = [
            c
            for c, outcomes in self.tried.items()
            if c.second is None
            and not c.relative
            and (c.features, c.unit_rows) == (chosen.features, chosen.unit_rows)
            and len(outcomes) == len(self.folds)
        ]
        many = WIDE[chosen.features][0]
        few, wide = ([c for c in alike if (c.latent_dim >= many) is whether] for whether in (False, True))
        if not few or not wide:
            return []
        first, second = (max(part, key=lambda c: score(self.tried[c])) for part in (few, wide))
        return [replace(first, second=second, relative=chosen.relative)]

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


def behind(mine: Sequence[Outcome], leader: Sequence[Outcome]) -> bool:
    """Whether `mine` is clearly worse than `leader` on the same queries of the folds so far, or nowhere better."""
    gains: dict[tuple[int, int], list[np.ndarray]] = {}
    for own, other in zip(mine, leader, strict=False):  # the leader ran on more folds
        for key in other:
            gains.setdefault(key, []).append(math.log(own[key].gallery) * (1 / own[key].ranks - 1 / other[key].ranks))
    joined = [np.concatenate(parts) for parts in gains.values()]
    if sum(len(gain) for gain in joined) < RACE_QUERIES:
        return False
    mean = np.mean([gain.mean() for gain in joined])
    error = math.sqrt(sum(gain.var() / len(gain) for gain in joined)) / len(joined)
    return bool(mean + RACE * error <= 0)


REFERENCES = 500  # training items per modality that hubs are measured with
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
    mixture: Mixture | None = None  # what stands beside what, where there are bases
    hubs: bool = False  # whether hubs are corrected for
    hub_scores: dict[str, float] = field(default_factory=dict)  # with and without the correction

    def summary(self, latent_dim: int) -> dict[str, Any]:
        """As a plain dict: the choice, and all candidates from the best to the worst, those that ran on fewer folds last."""
        ranked = sorted(self.scores.items(), key=lambda pair: (-pair[1][0], -pair[1][1]))
        return {
            **self.candidate.row(),
            "latent_dim": latent_dim,
            "refine_steps": self.refine_steps,
            "score": self.scores[self.candidate][1] if self.scores else None,
            "rows": self.rows,
            "candidates": [{**candidate.row(), "score": value, "folds": folds} for candidate, (folds, value) in ranked],
            "hubs": self.hubs,
            **({"hub_scores": self.hub_scores} if self.hub_scores else {}),
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
    bases: Sequence[Base] = (),
    needed: bool = False,
    hubs: str = "beside",
) -> Choice:
    """Search the grid on at most SEARCH_ROWS of the rows; `total` is how many rows the final fit has.

    An engine evaluates candidates and folds at the same time, with the same choice. The own space is chosen by itself, then
    which weight it has beside the bases; `needed`: these cannot be left out.
    """
    rows = search_sample(rows, seed)
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
    smaller = DistributedFolds([Fold(names, parts[f - 1], parts[f], seed, landmarks) for f in range(folds)], engine)
    # the first of two says as well what more rows bring
    grows = winner if bases or winner.relative else winner.parts[0]
    smaller.ahead([(f, grows) for f in range(folds)])
    fewer, more = [smaller.evaluate(f, grows) for f in range(folds)], search.tried[grows]
    judged, mixture, weights = better if steps else judged, None, OWN
    if bases:
        mixture = weigh([_sides(search, f, winner, steps, bases) for f in range(folds)], _pairs(rows), needed)
        judged, weights = mixture.judged, mixture.weights
        fewer, more = (
            [sides_of(fold, fold.spaces[winner], winner, bases).evened(mixture.share).outcome(weights) for fold in some]
            for some in (smaller.folds, search.folds)
        )
    without_hubs, hub_scores = False, dict[str, float]()
    if hubs in ("auto", "always") or (hubs == "beside" and bases):
        share = 0.0 if mixture is None else mixture.share
        corrected = [_without_hubs(search, f, winner, steps, bases, weights, share) for f in range(folds)]
        hub_scores = {"plain": score(judged), "corrected": score(corrected)}
        usual = not gains_beyond_noise(corrected, judged) if bases else gains_beyond_noise(judged, corrected)
        without_hubs = hubs == "always" or usual
        judged = corrected if without_hubs else judged
    gain = learning_gain(fewer, more, (folds - 1), total / float(np.mean([len(fold.train) for fold in search.folds])))
    return Choice(
        winner,
        steps,
        {candidate: (len(outcomes), score(outcomes)) for candidate, outcomes in search.tried.items()},
        _evidence(names, judged),
        gain,
        dispersion(judged),
        len(rows),
        refined,
        mixture,
        without_hubs,
        hub_scores,
    )


def _sides(
    search: CandidateSearch, f: int, winner: Candidate, steps: int, bases: Sequence[Base], train: bool = False
) -> Sides:
    """Where the held-out (or training) rows of a fold lie, in the space that the other folds chose, or in the refined one."""
    fold, candidate = search.folds[f], winner if steps else search.best(without=f)
    space = fold.spaces[candidate]
    if steps:
        space = refine_space(space, fold.whitened(candidate)[0], fold.train.present, steps, fold.seed)
    return sides_of(fold, space, candidate, bases, train)


def _without_hubs(
    search: CandidateSearch,
    f: int,
    winner: Candidate,
    steps: int,
    bases: Sequence[Base],
    weights: Weights,
    share: float,
) -> Outcome:
    """What a fold finds where hubs are corrected for with its training rows."""
    held, train = (_sides(search, f, winner, steps, bases, part).evened(share) for part in (False, True))
    return held.outcome(weights, True, [vectors[:REFERENCES] for vectors in train.mixed(weights)])


def _pairs(rows: Rows) -> float:
    """Rows that have both of two modalities, on average over those that meet at all."""
    together = rows_together(rows.present.cpu().numpy())
    meeting = together[np.triu(together, 1) > 0]
    return float(meeting.mean()) if len(meeting) else 0.0


def _judged(search: CandidateSearch, fold: int) -> Outcome:
    """What this fold finds with the candidate that the others chose."""
    candidate = search.best(without=fold)
    if search.folds[fold].held.relevant is None:
        return search.tried[candidate][fold]
    return search.folds[fold].look(search.folds[fold].spaces[candidate], candidate, every=True)


def search_sample(rows: Rows, seed: int) -> Rows:
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


def references_of(aligner: Aligner, names: Sequence[str], rows: Rows) -> dict[str, Tensor]:
    """Vectors of training items by the one modality that they come from, with which hubs are measured."""
    references = {}
    for m, name in enumerate(names):
        values = rows.of(m)[:REFERENCES]
        everything = torch.ones((len(values), 1), dtype=torch.bool, device=values.device)
        references[name] = place(aligner, [values], everything, [name]).half().cpu()
    return references
