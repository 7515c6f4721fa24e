"""Multimodal representations when modalities are missing."""

from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Load public names and subpackages on first use, so that `import calmrl` costs nothing."""
    if name == "__version__":
        from importlib.metadata import version

        return version("calmrl")
    return _load(name)
