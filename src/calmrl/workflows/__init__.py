"""One function per command of `calmrl`, from a config or plain arguments to a directory and a result."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
