"""A package that is imported when a test first uses it: to collect the tests, every worker would import it for nothing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class Later:
    """The package, as far as its attributes go; without it, the test file is skipped."""

    def __init__(self, name: str):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):  # pytest asks every object of a file whether it is a test
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)
