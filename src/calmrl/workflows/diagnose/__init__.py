"""Before any training: what is missing, what it costs, and whether filling it in will help. `diagnose(features)`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
