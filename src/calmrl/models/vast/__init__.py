"""The model of the paper: vision, audio and text towers, heads and a matching encoder, from public checkpoints."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
