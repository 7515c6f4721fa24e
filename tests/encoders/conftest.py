"""Checkpoints that several test files read."""

from __future__ import annotations

import pytest

from tests.support import tiny_checkpoints as tiny


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """Name in `tiny_checkpoints.MAKERS` -> how to refer to its checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return {name: tiny.make(name, folder / name) for name in tiny.MAKERS}
