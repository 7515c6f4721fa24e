"""Tables in the layout of the CalMRL paper from tidy results, as Markdown, LaTeX and CSV."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
