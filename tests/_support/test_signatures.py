"""Parameters and docstrings that are read from source, and the types of arguments."""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from calmrl._support import arguments
from calmrl._support.registry import COMPUTED, REQUIRED, signature_of

MODULE = '''
"""A module."""
from other_package import Base
import os

class Own:
    """Own.

    More.
    """
    def __init__(self, a, b: int = 3, *, c: "str | None" = None, d=os.sep, **more): ...

class Child(Base):
    def __init__(self, x: float = -1.5, **shared): ...

class Bare(Base, dict): ...

class Closed(Base):
    def __init__(self, only): ...

def made(first, /, second: str = "s", *rest, third=(1, 2)):
    """Made."""

class Outer:
    class Inner:
        def method(self, y=1): ...
'''
NUMBERS = count()  # what was read of a module is remembered, so that each test has one of its own


@pytest.fixture
def source(tmp_path, monkeypatch):
    """The signature of a name of the module above, which is never imported."""
    name = f"module_to_read_{next(NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda path: signature_of(f"{name}:{path}")
    assert name not in sys.modules


@pytest.mark.parametrize(
    ("name", "doc", "parameters"),
    [
        ("Own", "Own.\n\nMore.",
         {"a": ("Any", REQUIRED), "b": ("int", 3), "c": ("'str | None'", None), "d": ("Any", COMPUTED)}),
        ("made", "Made.", {"first": ("Any", REQUIRED), "second": ("str", "s"), "third": ("Any", (1, 2))}),
        ("Outer.Inner.method", "", {"y": ("Any", 1)}),
        ("Closed", "", {"only": ("Any", REQUIRED)}),
        ("Bare", "", {}),  # its base is not of this project
        ("Child", "", {"x": ("float", -1.5)}),
    ],
)  # fmt: skip
def test_what_is_read_from_source(source, name, doc, parameters):
    found = source(name)
    assert (found.doc, found.parameters) == (doc, parameters)


@pytest.mark.parametrize("name", ["Nothing", "Outer.Nothing", "REQUIRED"])
def test_names_that_are_not_defined(source, name):
    with pytest.raises(ImportError, match=f"module_to_read_.* defines no {name}"):
        source(name)


def test_a_module_that_is_not_there():
    with pytest.raises(ImportError, match="no module calmrl_nowhere"):
        signature_of("calmrl_nowhere:Name")


def test_constructors_that_pass_on_have_the_parameters_of_their_base():
    base = signature_of("calmrl.losses.base:AnchoredLoss").parameters
    gram = signature_of("calmrl.losses.volume:GramLoss").parameters
    assert gram == base | {"sign_guard": ("bool", True)}
    assert list(gram)[: len(base)] == list(base)
    assert signature_of("calmrl.losses.contrastive:VastLoss").parameters.keys() >= base.keys()  # without its own


def test_objects_that_are_imported():
    def function(a, b: int = 2, *rest, c=3, **more):
        """Doc."""

    class Local:
        """Local doc."""

        def __init__(self, z): ...

    assert signature_of(function).parameters == {"a": (Any, REQUIRED), "b": ("int", 2), "c": (Any, 3)}
    assert signature_of(function).doc == "Doc."
    assert signature_of(Local).parameters == {"z": (Any, REQUIRED)}
    assert signature_of(3).parameters == {}
    from calmrl._support.engine import LocalEngine

    assert signature_of(LocalEngine).parameters == {"address": ("str | None", None)}  # read from its source


# ---- types of arguments


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
def test_types_of_arguments(name, good, bad):
    held = TypeAdapter(getattr(arguments, name))
    for value in good:
        assert held.validate_python(value) == value
    for value in bad:
        with pytest.raises(ValidationError):
            held.validate_python(value)
