"""Multimodal representations when modalities are missing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calmrl.aligner import Aligner
    from calmrl.alignment import CalibratedAlignment
    from calmrl.imputers.gaussian import GaussianImputer
    from calmrl.models.saved import load

__all__ = ["Aligner", "CalibratedAlignment", "GaussianImputer", "__version__", "load"]

_HOME = {
    "Aligner": "calmrl.aligner",
    "CalibratedAlignment": "calmrl.alignment",
    "GaussianImputer": "calmrl.imputers.gaussian",
    "load": "calmrl.models.saved",
}


def __getattr__(name: str) -> Any:
    """Load the public names on first use, so that `import calmrl` costs nothing."""
    if name == "__version__":
        from importlib.metadata import version

        return version("calmrl")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'calmrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
