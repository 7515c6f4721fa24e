"""Configs: YAML files checked by pydantic models, changed on the command line with `key=value`.

`load` reads a file or a shipped config, applies overrides and returns a model; everything that is wrong is reported at
once. `dump` writes the resolved config. A kind of config is one pydantic model in `KINDS`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
