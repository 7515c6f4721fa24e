"""Training: the step, the loop, checkpoints, and the methods by name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
