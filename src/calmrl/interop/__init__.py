"""At home in other libraries: calmrl as a model and as a task of MTEB."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
