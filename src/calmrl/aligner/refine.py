"""Refinement: heads continue from the closed form by gradient, as many steps as held-out rows gain from.

The gradient of the contrastive loss is in closed form, several times cheaper than to record and replay it.

With unit heads u^a = h^a / |h^a|, scores s_ij = u_i^a . u_j^b / T over the rows i that have a and j that have b, and rows
that have both as terms, the loss is the mean over all terms of all pairs of

    1/2 [log sum_j exp(s_ij) + log sum_j exp(s_ji)] - s_ii.

Scores are cosines, so exp(s - 1/T) lies between exp(-2/T) and 1 and no maximum has to be subtracted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from calmrl.aligner.crossvalidation import Fold, Outcome, outcome, score
from calmrl.aligner.space import Candidate, Space

TEMPERATURE = 0.1


def head_gradients(heads: list[Tensor], present: Tensor) -> list[Tensor]:
    """The derivative of the loss by every head, (n_m, L) each; `heads[m]` holds the rows that have m, in their order."""
    length = [h.norm(dim=1, keepdim=True).clamp(min=1e-12) for h in heads]
    unit = [h / size for h, size in zip(heads, length, strict=True)]
    slope = [torch.zeros_like(u) for u in unit]
    number = present.long().cumsum(0) - 1
    terms = 0
    for a, b in combinations(range(len(heads)), 2):
        both = (present[:, a] & present[:, b]).nonzero()[:, 0]
        if not len(both):
            continue
        terms += len(both)
        by_score = _score_gradient(unit[a] @ unit[b].T, number[both, a], number[both, b])
        slope[a].addmm_(by_score, unit[b])
        slope[b].addmm_(by_score.T, unit[a])
    share = 1 / (TEMPERATURE * max(1, terms))
    return [  # only the part across the head changes its direction
        share * (d - u * (u * d).sum(1, keepdim=True)) / size for d, u, size in zip(slope, unit, length, strict=True)
    ]


def _score_gradient(cosines: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The derivative of the sum of terms by every score; term t stands in row `rows[t]` and column `columns[t]`."""
    weight = cosines.sub_(1).div_(TEMPERATURE).exp_()
    by_row, by_column = weight.new_zeros(len(weight)), weight.new_zeros(weight.shape[1])
    by_row[rows] = 0.5 / weight.sum(1)[rows]
    by_column[columns] = 0.5 / weight.sum(0)[columns]
    gradient = weight.mul_(by_row[:, None] + by_column)
    gradient[rows, columns] -= 1
    return gradient


RATE = 0.012  # of Adam, in standard deviations of a head's weights
FIRST, SECOND = 0.9, 0.999  # how much of the mean gradient and of the mean square stays from step to step
BATCH = 256
STEPS = (6, 12, 25, 50)  # where held-out rows are looked at
PATIENCE = 12  # steps after which a first fold without any gain ends the attempt
NOISE = 2.0  # standard errors that the gain must exceed


def refine_space(space: Space, features: list[Tensor], present: Tensor, steps: int, seed: int) -> Space:
    """The space after so many steps; `features[m]` are the whitened features of the rows that have m."""
    return Walk(space, features, present, seed).to(steps)


def steps_worth(
    folds: list[Fold], candidate: Candidate, start: list[Outcome], refine: str, seed: int
) -> tuple[int, dict[int, float], list[Outcome]]:
    """(steps to refine, steps -> score, what the folds found after that many); 0 steps where nothing is gained.

    Goes on while the score over all folds rises. "auto" needs a gain of more than NOISE standard errors over all held-out
    queries, and gives up early where the first fold gains nothing at all; "always" takes the best number of steps.
    """
    if refine == "never":
        return 0, {}, start
    features = [fold.whitened(candidate) for fold in folds]
    walks = [
        Walk(fold.spaces[candidate], train, fold.train.present, seed)
        for fold, (train, _) in zip(folds, features, strict=True)
    ]

    def after(f: int, steps: int) -> Outcome:
        space, held = walks[f].to(steps), folds[f].held
        return outcome(
            [space.unit(m, h) for m, h in enumerate(features[f][1])], held.present, held.relevant, every=True
        )

    first = {steps: after(0, steps) for steps in STEPS if steps <= PATIENCE}
    if refine == "auto" and max(score([one]) for one in first.values()) <= score(start[:1]):
        return 0, {}, start
    by_steps: dict[int, list[Outcome]] = {}
    scores: dict[int, float] = {}
    for steps in STEPS:
        own = first[steps] if steps in first else after(0, steps)
        by_steps[steps] = [own, *(after(f, steps) for f in range(1, len(folds)))]
        scores[steps] = score(by_steps[steps])
        if steps > PATIENCE and scores[steps] < max(scores.values()):
            break
    best = max(scores, key=lambda steps: scores[steps])
    if refine == "auto" and not gains_beyond_noise(start, by_steps[best]):
        return 0, scores, start
    return best, scores, by_steps[best]


def gains_beyond_noise(before: list[Outcome], after: list[Outcome]) -> bool:
    """Whether queries find their items earlier, beyond noise: mean of 1 / rank against its paired standard error."""
    gain = np.concatenate(
        [1 / new[key].ranks - 1 / old[key].ranks for old, new in zip(before, after, strict=True) for key in old]
    )
    return bool(gain.mean() > NOISE * gain.std() / np.sqrt(len(gain)))


class Walk:
    """Steps of Adam from a space, as far as they were needed so far; the precisions stay as they are."""

    def __init__(self, space: Space, features: list[Tensor], present: Tensor, seed: int) -> None:
        self.space, self.features, self.present = space, features, present
        self.weight = [w.to(f).clone() for w, f in zip(space.weight, features, strict=True)]
        self.bias = [b.to(f).clone() for b, f in zip(space.bias, features, strict=True)]
        self.rate = [RATE * float(w.std()) for w in self.weight]
        self.mean, self.square = ([torch.zeros_like(t) for t in (*self.weight, *self.bias)] for _ in range(2))
        self.generator = torch.Generator().manual_seed(seed)
        self.useful = (present.sum(1) > 1).nonzero()[:, 0]  # rows that can teach something
        self.number = present.long().cumsum(0) - 1
        self.order = self.useful[:0]
        self.done = 0

    def to(self, steps: int) -> Space:
        """The space after so many steps in all."""
        while self.done < steps and len(self.useful) > 1:
            self.done += 1
            self._step()
        weight, bias = ([t.double().clone() for t in part] for part in (self.weight, self.bias))
        return replace(self.space, weight=weight, bias=bias)

    def _step(self) -> None:
        """One step of Adam on the next rows."""
        by_weight, by_bias = self._gradients(self._next_rows())
        places = zip((*self.weight, *self.bias), (*by_weight, *by_bias), self.mean, self.square, strict=True)
        root = math.sqrt(1 - SECOND**self.done)
        for place, (value, gradient, mean, square) in enumerate(places):
            rate = self.rate[place % len(self.rate)] / (1 - FIRST**self.done)
            mean.lerp_(gradient, 1 - FIRST)
            square.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
            value.addcdiv_(mean, (square.sqrt() / root).add_(1e-8), value=-rate)

    def _next_rows(self) -> Tensor:
        if len(self.order) < min(BATCH, len(self.useful)):
            order = torch.randperm(len(self.useful), generator=self.generator)
            self.order = self.useful[order.to(self.useful.device)]
        rows, self.order = self.order[:BATCH], self.order[BATCH:]
        return rows

    def _gradients(self, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The derivatives of the loss of these rows by weights and biases."""
        present, number = self.present[rows], self.number[rows]
        values = [f[number[present[:, m], m]] for m, f in enumerate(self.features)]
        heads = [torch.addmm(b, v, w) for v, w, b in zip(values, self.weight, self.bias, strict=True)]
        slopes = head_gradients(heads, present)
        return [v.T @ s for v, s in zip(values, slopes, strict=True)], [s.sum(0) for s in slopes]
