"""Alignment objectives: `loss(z, present)` gives a scalar, for any pattern of missing modalities."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
