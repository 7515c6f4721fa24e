"""Features from and to the objects and files of other libraries, observed and imputed apart; models and tasks of MTEB."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
