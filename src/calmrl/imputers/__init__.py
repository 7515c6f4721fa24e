"""Ways to complete missing modalities, all with `fit`, `transform`, `impute(..., return_std=)`, `save` and `load`."""

from typing import Any

from calmrl.imputers.simple import KNNImputer, MeanImputer, RidgeImputer
from calmrl.latent import GaussianImputer

IMPUTERS: dict[str, Any] = {
    "gaussian": GaussianImputer,
    "mean": MeanImputer,
    "knn": KNNImputer,
    "ridge": RidgeImputer,
}

__all__ = ["IMPUTERS", "GaussianImputer", "KNNImputer", "MeanImputer", "RidgeImputer"]
