"""Alignment objectives: `loss(z, present)` gives a scalar, for any pattern of missing modalities."""

from calmrl.losses.contrastive import ContrastiveLoss, VastLoss
from calmrl.losses.gram import GramLoss
from calmrl.losses.matching import InstanceMatching
from calmrl.losses.pmrl import PMRLLoss
from calmrl.losses.registry import LOSSES
from calmrl.losses.triangle import TriangleLoss

__all__ = ["LOSSES", "ContrastiveLoss", "GramLoss", "InstanceMatching", "PMRLLoss", "TriangleLoss", "VastLoss"]
