"""The losses by name."""

from __future__ import annotations

from typing import Any

from calmrl._support.registry import Registry

LOSSES: Registry[Any] = Registry(
    "loss",
    {
        "contrastive": "calmrl.losses.contrastive:ContrastiveLoss",
        "gram": "calmrl.losses.gram:GramLoss",
        "pmrl": "calmrl.losses.pmrl:PMRLLoss",
        "triangle": "calmrl.losses.triangle:TriangleLoss",
    },
)
