"""Types of arguments at their limits."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from calmrl._support import signatures as arguments


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("Count", [1, 2], [0, -1]),
        ("Positive", [1e-9, 0.5], [0.0, -1.0]),
        ("NotNegative", [0.0, 0.5], [-1e-9]),
        ("Share", [0.0, 0.5, 0.999], [1.0, 1.5, -1e-9]),
        ("Fraction", [0.0, 0.5, 1.0], [1.001, 1.5, -1e-9]),
        ("Seed", [0, 1], [-1]),
    ],
)
def test_limits(name, good, bad):
    held = TypeAdapter(getattr(arguments, name))
    for value in good:
        assert held.validate_python(value) == value
    for value in bad:
        with pytest.raises(ValidationError):
            held.validate_python(value)
