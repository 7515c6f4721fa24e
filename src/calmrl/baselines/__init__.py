"""Classical alignment in closed form, to compare with: CCA and its kin, regression, rotation, relative representations."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
