"""How good representations are: retrieval, classification, imputation, geometry, and how sure the numbers are."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
