"""What tests of commands share."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.fixture
def passed(monkeypatch):
    """Replace a function: (address, result) -> list of the (arguments, options) that it is called with."""

    def replace(address: str, result: object = None) -> list[tuple[tuple, dict]]:
        calls: list[tuple[tuple, dict]] = []

        def stand_in(*arguments, **options):
            calls.append((arguments, {n: v for n, v in options.items() if n not in ("progress", "report", "command")}))
            return result

        place, _, name = address.rpartition(".")
        monkeypatch.setattr(import_module(place), name, stand_in)  # a package may hold a function of a module's name
        return calls

    return replace
