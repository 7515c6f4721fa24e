"""Refinement is Adam on the contrastive loss, made where the gain exceeds its noise."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from calmrl.aligner.crossvalidation import FoldDirection
from calmrl.aligner.refine import STEPS, Walk, gains_beyond_noise, refine_space, steps_worth
from calmrl.aligner.space import Space
from calmrl.losses.base import symmetric_terms


def start(n, k=2, d=3, seed=0):
    """(space, features of the rows that have each modality, present)"""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    present = torch.rand(n, k, generator=generator) < 0.8
    present[:3] = True
    present[-1] = torch.arange(k) == 0  # a row that teaches nothing
    space = Space([draw(d, 4) for _ in range(k)], [draw(4) for _ in range(k)], [torch.eye(4).double()] * k)
    return space, [draw(int(present[:, m].sum()), d) for m in range(k)], present


def adam(space, features, present, steps, seed):
    """The same with torch's Adam and recorded derivatives, rate 0.012 in standard deviations of a head's weights."""
    weight = [w.clone().requires_grad_() for w in space.weight]
    bias = [b.clone().requires_grad_() for b in space.bias]
    groups = [{"params": [w, b], "lr": 0.012 * float(w.detach().std())} for w, b in zip(weight, bias, strict=True)]
    optimiser = torch.optim.Adam(groups, betas=(0.9, 0.999), eps=1e-8)
    generator = torch.Generator().manual_seed(seed)
    useful = (present.sum(1) > 1).nonzero()[:, 0]
    number, order = present.long().cumsum(0) - 1, useful[:0]
    for _ in range(steps):
        if len(order) < min(256, len(useful)):
            order = useful[torch.randperm(len(useful), generator=generator)]
        rows, order = order[:256], order[256:]
        there, units = present[rows], []
        for m, values in enumerate(features):
            heads = values[number[rows, m].clamp(min=0)] @ weight[m] + bias[m]
            units.append(torch.where(there[:, [m]], normalize(heads, dim=1), 0.0))
        parts = [
            symmetric_terms(
                lambda i, j, x=units[a], y=units[b]: x[i:j] @ y.T / 0.1,
                there[:, a],
                there[:, b],
                smoothing=0.0,
                chunk_size=None,
            )
            for a, b in combinations(range(len(features)), 2)
        ]
        optimiser.zero_grad()
        (sum(total for total, _ in parts) / sum(count for _, count in parts)).backward()
        optimiser.step()
    return weight, bias


@pytest.mark.parametrize(("n", "k", "steps"), [(30, 3, 4), (330, 2, 3)])
def test_steps_are_those_of_adam(n, k, steps):
    space, features, present = start(n, k)
    refined = refine_space(space, features, present, steps, seed=5)
    weight, bias = adam(space, features, present, steps, 5)
    for mine, theirs in zip([*refined.weight, *refined.bias], [*weight, *bias], strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-9, atol=1e-12)
    assert refined.information is space.information
    assert any((mine - theirs).abs().max() > 1e-4 for mine, theirs in zip(refined.weight, space.weight, strict=True))


def test_going_on_is_going_at_once():
    space, features, present = start(40)
    walk = Walk(space, features, present, 1)
    walk.to(2)
    for part in ("weight", "bias"):
        once = getattr(Walk(space, features, present, 1).to(5), part)
        assert all(map(torch.equal, getattr(walk.to(5), part), once))


@pytest.mark.parametrize(("useful", "moves"), [(1, False), (2, True)])
def test_two_rows_are_needed(useful, moves):
    space, features, _ = start(8)
    present = torch.ones(8, 2, dtype=torch.bool)
    present[useful:, 1] = False
    refined = refine_space(space, [torch.ones(8, 3).double(), features[1][:useful]], present, 3, 0)
    assert torch.equal(refined.weight[1], space.weight[1]) != moves


def outcomes(better, n=100):
    """Ranks 2 everywhere, and rank 1 for so many of n queries."""
    return [{(0, 1): FoldDirection(np.where(np.arange(n) < better, 1.0, 2.0), 50)}]


def test_a_gain_exceeds_two_standard_errors_or_is_none():
    assert not gains_beyond_noise(outcomes(0), outcomes(0))
    assert not gains_beyond_noise(outcomes(0), outcomes(3))  # 0.015 against 2 x 0.0085
    assert gains_beyond_noise(outcomes(0), outcomes(4))  # 0.020 against 2 x 0.0098
    assert not gains_beyond_noise(outcomes(4), outcomes(0))


def test_never_is_never():
    begun = outcomes(3)
    assert steps_worth([], None, begun, "never", 0) == (0, {}, begun)
    assert STEPS == (6, 12, 25, 50)


def tried(monkeypatch, ranks, refine="auto", folds=2):
    """`steps_worth` where `ranks(fold, steps)` are what so many steps find; 0 steps is the start."""

    class Steps:
        def __init__(self, fold, *_):
            self.fold = fold

        def to(self, steps):
            self.steps = steps
            return self

        def unit(self, m, h):
            return self

    class Rows:
        present, relevant = None, None

    class Numbered:
        def __init__(self, number):
            self.spaces, self.train, self.held = {"c": number}, Rows(), Rows()

        def whitened(self, candidate):
            return [None], [None]

    def outcome(units, present, relevant, every):
        assert every
        asked.append((units[0].fold, units[0].steps))
        return {(0, 1): FoldDirection(np.asarray(ranks(units[0].fold, units[0].steps), dtype=float), 50)}

    asked = []
    monkeypatch.setattr("calmrl.aligner.refine.Walk", Steps)
    monkeypatch.setattr("calmrl.aligner.refine.outcome", outcome)
    begun = [{(0, 1): FoldDirection(np.asarray(ranks(f, 0), dtype=float), 50)} for f in range(folds)]
    steps, scores, found = steps_worth([Numbered(f) for f in range(folds)], "c", begun, refine, 0)
    assert (
        found == begun
        if steps == 0
        else [one[0, 1].ranks.tolist() for one in found] == [list(map(float, ranks(f, steps))) for f in range(folds)]
    )
    return steps, list(scores), asked


def ranks_with(share):
    return [1] * share + [2] * (100 - share)


def test_a_clear_gain_is_taken_at_its_best(monkeypatch):
    by_steps = {0: 0, 6: 10, 12: 20, 25: 30, 50: 25}
    assert tried(monkeypatch, lambda f, steps: ranks_with(by_steps[steps]))[:2] == (25, [6, 12, 25, 50])
    by_steps |= {25: 15}
    steps, scores, _ = tried(monkeypatch, lambda f, steps: ranks_with(by_steps[steps]))
    assert (steps, scores) == (12, [6, 12, 25])  # worse after 25: no further
    by_steps = {0: 0, 6: 20, 12: 10, 25: 5, 50: 50}
    assert tried(monkeypatch, lambda f, steps: ranks_with(by_steps[steps]))[:2] == (6, [6, 12, 25])


def test_a_first_fold_without_any_gain_ends_it(monkeypatch):
    def ranks(fold, steps):
        return ranks_with(10 if fold == 0 else 10 + steps)

    steps, scores, asked = tried(monkeypatch, ranks)
    assert (steps, scores) == (0, [])
    assert asked == [(0, 6), (0, 12)]
    assert tried(monkeypatch, ranks, "always")[0] == 50


def test_a_gain_within_its_noise_is_not_taken(monkeypatch):
    by_steps = {0: 10, 6: 11, 12: 11, 25: 11, 50: 11}
    steps, scores, _ = tried(monkeypatch, lambda f, steps: ranks_with(by_steps[steps]))
    assert (steps, scores) == (0, [6, 12, 25, 50])
    assert tried(monkeypatch, lambda f, steps: ranks_with(by_steps[steps]), "always")[0] == 6
