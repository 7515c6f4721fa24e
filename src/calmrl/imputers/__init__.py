"""Ways to complete missing modalities, all with `fit`, `transform`, `impute(..., return_std=)`, `save` and `load`."""

from typing import Any

from calmrl.imputers.auto import AutoImputer
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.gfa import GFAImputer
from calmrl.imputers.kernel import KernelImputer
from calmrl.imputers.knowledge_bridger import KnowledgeBridgerImputer
from calmrl.imputers.mopoe import MoPoEImputer
from calmrl.imputers.mvae import MVAEImputer
from calmrl.imputers.simple import KNNImputer, MeanImputer, RidgeImputer
from calmrl.imputers.smil import SMILImputer

IMPUTERS: dict[str, Any] = {
    "auto": AutoImputer,
    "gaussian": GaussianImputer,
    "kernel": KernelImputer,
    "mean": MeanImputer,
    "knn": KNNImputer,
    "ridge": RidgeImputer,
    "mvae": MVAEImputer,
    "mopoe": MoPoEImputer,
    "smil": SMILImputer,
    "gfa": GFAImputer,
    "knowledge_bridger": KnowledgeBridgerImputer,
}

__all__ = [
    "IMPUTERS",
    "AutoImputer",
    "GFAImputer",
    "GaussianImputer",
    "KNNImputer",
    "KernelImputer",
    "KnowledgeBridgerImputer",
    "MVAEImputer",
    "MeanImputer",
    "MoPoEImputer",
    "RidgeImputer",
    "SMILImputer",
]
