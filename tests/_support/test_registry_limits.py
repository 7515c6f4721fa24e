"""Registries and what they read from source: names, nearness, parameters, docstrings."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from calmrl._support import signatures
from calmrl._support.registry import Registry, closest, lookup
from calmrl._support.signatures import COMPUTED, REQUIRED, signature_of
from calmrl.errors import InputError

MODULE = '''
"""A module."""
from calmrl_try_base import Base
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
BASE = """
class Root:
    def __init__(self, r: int = 1): ...

class Base(Root):
    def __init__(self, deep: bool = True, x: int = 0, **shared): ...
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    """The module above in a package that counts as ours."""
    package = tmp_path / "calmrl_try"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "calmrl_try_module.py").write_text(MODULE)
    (tmp_path / "calmrl_try_base.py").write_text(BASE)
    monkeypatch.syspath_prepend(tmp_path)
    signatures._read.cache_clear()
    signatures._tree.cache_clear()
    yield lambda name: signature_of(f"calmrl_try_module:{name}")
    for name in ("calmrl_try_module", "calmrl_try_base"):
        assert name not in sys.modules  # nothing is imported
    signatures._read.cache_clear()
    signatures._tree.cache_clear()


def test_parameters_are_read_from_source(source):
    own = source("Own")
    assert own.doc == "Own.\n\nMore."
    assert own.parameters == {
        "a": ("Any", REQUIRED), "b": ("int", 3), "c": ("'str | None'", None), "d": ("Any", COMPUTED),
    }  # fmt: skip
    made = source("made")
    assert made.parameters == {"first": ("Any", REQUIRED), "second": ("str", "s"), "third": ("Any", (1, 2))}
    assert made.doc == "Made."
    assert source("Outer.Inner.method").parameters == {"y": ("Any", 1)}
    assert source("Closed").parameters == {"only": ("Any", REQUIRED)}
    assert source("Bare").parameters == {}  # its base is not of this project
    assert source("Child").parameters == {"x": ("float", -1.5)}


def test_what_is_not_there(source):
    for name in ("Nothing", "Outer.Nothing", "REQUIRED"):
        with pytest.raises(ImportError, match=f"calmrl_try_module defines no {name}"):
            source(name)
    with pytest.raises(ImportError, match="no module calmrl_nowhere"):
        signature_of("calmrl_nowhere:Name")


def test_constructors_that_pass_on_have_the_parameters_of_their_base():
    base = signature_of("calmrl.losses.base:AnchoredLoss").parameters
    gram = signature_of("calmrl.losses.gram:GramLoss").parameters
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


def test_a_registry():
    held: Registry[Any] = Registry("thing", {"path": "pathlib:Path", "three": 3})
    assert repr(held) == "Registry(thing: path, three)"
    assert held.get("path").__name__ == "Path"
    assert held["path"] is held["path"]
    assert held.get("nothing") is None
    assert held.get("nothing", 7) == 7
    assert (len(held), list(held), "three" in held) == (2, ["path", "three"], True)
    held["four"] = 4
    del held["three"]
    assert list(held) == ["path", "four"]
    from pathlib import Path

    assert held.name_of(Path) == "path"
    fresh: Registry[Any] = Registry("thing", {"other": "pathlib:PurePath", "path": "pathlib:Path"})
    assert fresh.name_of(Path) == "path"
    with pytest.raises(InputError, match=r"is no registered thing\. Known: path, four\."):
        held.name_of(dict)
    assert Registry("thing", {"a": "pathlib:Path"}).about("a").startswith("PurePath")


def test_near_names():
    names = ["gaussian", "kernel", "mean"]
    assert closest("gausian", names) == "gaussian"
    assert closest("xyz", names) is None
    assert closest("abcd", ["abxy"]) == "abxy"  # half of the letters agree
    assert closest("abcde", ["abxyz"]) is None
    with pytest.raises(
        InputError, match=r'^unknown thing "mea"; did you mean "mean"\? Known: gaussian, kernel, mean\.$'
    ):
        lookup(dict.fromkeys(names), "mea", "thing")
    with pytest.raises(InputError, match=r'^unknown thing "xyz" Known: gaussian, kernel, mean\.$'):
        lookup(dict.fromkeys(names), "xyz", "thing")
