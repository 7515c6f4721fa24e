"""Ways to complete missing modalities, all with `fit`, `transform`, `impute(..., return_std=)`, `save` and `load`."""

from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.gfa import GFAImputer
from calmrl.imputers.knowledge_bridger import KnowledgeBridgerImputer
from calmrl.imputers.mopoe import MoPoEImputer
from calmrl.imputers.mvae import MVAEImputer
from calmrl.imputers.registry import IMPUTERS
from calmrl.imputers.simple import KNNImputer, MeanImputer, RidgeImputer
from calmrl.imputers.smil import SMILImputer

__all__ = [
    "IMPUTERS",
    "GFAImputer",
    "GaussianImputer",
    "KNNImputer",
    "KnowledgeBridgerImputer",
    "MVAEImputer",
    "MeanImputer",
    "MoPoEImputer",
    "RidgeImputer",
    "SMILImputer",
]
