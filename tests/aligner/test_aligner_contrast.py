"""The gradient of refinement in closed form against the loss that autograd differentiates."""

from itertools import combinations

import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn.functional import normalize

from calmrl.aligner.refine import TEMPERATURE, head_gradients
from calmrl.losses.base import symmetric_terms


def recorded(heads, present):
    """The mean over pairs of modalities and rows that have both of the symmetric cross-entropy."""
    unit = []
    for m, head in enumerate(heads):
        full = head.new_zeros((len(present), head.shape[1]))
        unit.append(full.index_put((present[:, m].nonzero()[:, 0],), normalize(head, dim=1)))
    totals, counts = [], []
    for a, b in combinations(range(len(heads)), 2):

        def scores(start, stop, a=a, b=b):
            return unit[a][start:stop] @ unit[b].T / TEMPERATURE

        total, count = symmetric_terms(scores, present[:, a], present[:, b], smoothing=0.0, chunk_size=None)
        totals.append(total)
        counts.append(count)
    return sum(totals) / sum(counts).clamp(min=1)


@pytest.mark.parametrize("apart", [False, True], ids=["all pairs", "two modalities never meet"])
def test_the_gradient_is_that_of_the_recorded_loss(apart):
    generator = torch.Generator().manual_seed(0)
    present = torch.rand(40, 3, generator=generator) > 0.4
    if apart:
        present[:, 2] &= ~present[:, 0]
    heads = [torch.randn(int(n), 6, generator=generator, dtype=torch.float64) for n in present.sum(0)]
    leaves = [head.clone().requires_grad_() for head in heads]
    recorded(leaves, present).backward()
    for leaf, got in zip(leaves, head_gradients(heads, present), strict=True):
        assert_allclose(got, leaf.grad, atol=1e-12)


def test_equal_and_opposite_heads_have_finite_gradients():
    head = torch.ones(5, 3)
    for gradient in head_gradients([head, -head], torch.ones(5, 2, dtype=torch.bool)):
        assert torch.isfinite(gradient).all()
