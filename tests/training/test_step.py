"""One training step: which terms its loss has."""

from __future__ import annotations

import torch
from torch import nn

from calmrl.losses import ContrastiveLoss
from calmrl.training.step import Step


class Same(nn.Module):
    """Gives what it gets."""

    names = ("image", "text")

    def encode(self, inputs, present):
        return inputs, None


class Constant(nn.Module):
    """A matching head whose loss is 3."""

    def forward(self, z, present, generator=None):
        return torch.tensor(3.0)


def test_a_weight_of_zero_leaves_matching_out():
    generator = torch.Generator().manual_seed(0)
    z = {name: torch.nn.functional.normalize(torch.randn(4, 3, generator=generator), dim=1) for name in Same.names}
    present = torch.ones(4, 2, dtype=torch.bool)
    plain, weighed = (Step(Same(), ContrastiveLoss(anchor=None), Constant(), weight) for weight in (0.0, 0.1))
    assert torch.isclose(weighed(z, present) - plain(z, present), torch.tensor(0.3))
    assert "matching" in weighed.last
    assert "matching" not in plain.last
