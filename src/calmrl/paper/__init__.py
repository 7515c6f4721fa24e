"""What exists for the paper's experiments: VAST, readers of public collections, official encoders, `calmrl reproduce`.

Nothing but the command line imports it: registries name what is in here as text, "calmrl.paper.module:Name".
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
