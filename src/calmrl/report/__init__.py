"""Results become a page: the answer first, then figures and tables, as one HTML file and as Markdown."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
