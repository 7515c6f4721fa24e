"""The latent model: complete missing representations, and put any subset of modalities into one space."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
