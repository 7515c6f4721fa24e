"""The alignment objectives by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calmrl._support.registry import Registry

if TYPE_CHECKING:
    from torch import nn

LOSSES: Registry[type[nn.Module]] = Registry(
    "objective",
    {
        "contrastive": "calmrl.losses.contrastive:ContrastiveLoss",
        "gram": "calmrl.losses.gram:GramLoss",
        "pmrl": "calmrl.losses.pmrl:PMRLLoss",
        "triangle": "calmrl.losses.triangle:TriangleLoss",
        "vast": "calmrl.losses.contrastive:VastLoss",
    },
)
