"""Trainable models: modalities in, one unit vector per modality out."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
