"""Saved models on the Hugging Face Hub: upload with a model card, download with checksums verified; no pickle."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
