"""The latent model: complete missing representations, and put any subset of modalities into one space."""

from calmrl.latent.gradient import GaussianLatent
from calmrl.latent.imputer import GaussianImputer

__all__ = ["GaussianImputer", "GaussianLatent"]
