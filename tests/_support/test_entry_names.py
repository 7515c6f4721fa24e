"""Registries: an entry is found by its name, and a name by its entry."""

from __future__ import annotations

import pytest

from calmrl.errors import InputError
from calmrl.losses import LOSSES, PMRLLoss


def test_the_name_of_an_entry():
    assert LOSSES.name_of(PMRLLoss) == "pmrl"
    with pytest.raises(InputError, match=r"dict.* is no registered objective.*Known: .*pmrl"):
        LOSSES.name_of(dict)
