"""Public collections as their publishers ship them: a reader per publisher, and the names that downloaders give to files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
