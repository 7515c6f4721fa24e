"""Feature directories: one memory-mappable array per modality, a mask, and a table of the rows."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
