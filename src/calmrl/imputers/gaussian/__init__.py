"""The latent model: complete missing representations, and put any subset of modalities into one space."""

from calmrl.imputers.gaussian.gradient import GaussianLatent
from calmrl.imputers.gaussian.imputer import GaussianImputer

__all__ = ["GaussianImputer", "GaussianLatent"]
