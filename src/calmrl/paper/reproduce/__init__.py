"""The tables and figures of the paper: what they need, the runs behind them, and our numbers beside the published ones."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
