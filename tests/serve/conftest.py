"""Collections to serve."""

from __future__ import annotations

import pytest

from shapes import ShapeIndex, write_shapes


@pytest.fixture(scope="session")
def shapes(tmp_path_factory):
    """A collection with holes that is searched without encoders."""
    return ShapeIndex(write_shapes(tmp_path_factory.mktemp("shapes") / "items"))
