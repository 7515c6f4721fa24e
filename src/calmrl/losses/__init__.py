"""Alignment objectives: `loss(z, present)` gives a scalar, for any pattern of missing modalities."""

from __future__ import annotations

from torch import nn

from calmrl.losses.contrastive import ContrastiveLoss
from calmrl.losses.gram import GramLoss
from calmrl.losses.matching import InstanceMatching
from calmrl.losses.pmrl import PMRLLoss
from calmrl.losses.triangle import TriangleLoss

LOSSES: dict[str, type[nn.Module]] = {
    "contrastive": ContrastiveLoss,
    "gram": GramLoss,
    "pmrl": PMRLLoss,
    "triangle": TriangleLoss,
}

__all__ = ["LOSSES", "ContrastiveLoss", "GramLoss", "InstanceMatching", "PMRLLoss", "TriangleLoss"]
