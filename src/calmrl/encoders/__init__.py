"""Frozen encoders, from media to vectors: `load_encoder(name)` with a name of ENCODERS, "hf:PATH" or "st:PATH"."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
