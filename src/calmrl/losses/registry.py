"""The alignment objectives by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from calmrl._support.registry import Registry

if TYPE_CHECKING:
    from torch import nn

LOSSES: Registry[type[nn.Module]] = Registry(
    "objective",
    {
        "confu": "calmrl.losses.published:ConfuLoss",
        "contrastive": "calmrl.losses.contrastive:ContrastiveLoss",
        "fusemix": "calmrl.losses.contrastive:FuseMixLoss",
        "gram": "calmrl.losses.volume:GramLoss",
        "pmrl": "calmrl.losses.pmrl:PMRLLoss",
        "structure": "calmrl.losses.published:StructureLoss",
        "symile": "calmrl.losses.published:SymileLoss",
        "triangle": "calmrl.losses.volume:TriangleLoss",
        "vast": "calmrl.losses.contrastive:VastLoss",
    },
)

OF_FEATURES = frozenset({"fusemix", "structure"})  # they also use what goes into the heads
