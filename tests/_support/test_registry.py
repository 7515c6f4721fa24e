"""Registries: entries that are imported when they are used, what is read of their source, and sections chosen by name."""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter, ValidationError

from calmrl._support import arguments
from calmrl._support.arguments import Count
from calmrl._support.engine import LocalEngine
from calmrl._support.registry import COMPUTED, REQUIRED, Registry, lookup, signature_of
from calmrl._support.section import ChosenSection, Section
from calmrl._support.text import closest
from calmrl.errors import InputError
from calmrl.losses import LOSSES, PMRLLoss


def test_a_registry_is_a_dict():
    held: Registry[Any] = Registry("thing", {"path": "pathlib:Path", "three": 3})
    assert repr(held) == "Registry(thing: path, three)"
    assert held.about("path").startswith("PurePath")
    assert held["path"] is held.get("path") is Path
    assert (held.get("nothing"), held.get("nothing", 7)) == (None, 7)
    held["four"] = 4
    del held["three"]
    assert (len(held), list(held), "three" in held) == (2, ["path", "four"], False)
    assert held.about("path").startswith("PurePath")


def test_the_name_of_an_entry():
    assert LOSSES.name_of(PMRLLoss) == "pmrl"
    held: Registry[Any] = Registry("thing", {"other": "collections:Counter", "fraction": "fractions:Fraction"})
    assert held.name_of(Fraction) == "fraction"  # nothing was imported for it
    with pytest.raises(InputError, match=r"dict.* is no registered thing\. Known: other, fraction\."):
        held.name_of(dict)


@pytest.mark.parametrize(
    ("name", "names", "found"),
    [
        ("gausian", ["gaussian", "kernel", "mean"], "gaussian"),
        ("xyz", ["gaussian", "kernel", "mean"], None),
        ("abcd", ["abxy"], "abxy"),  # half of the letters agree
        ("abcde", ["abxyz"], None),
    ],
)
def test_the_closest_name(name, names, found):
    assert closest(name, names) == found


@pytest.mark.parametrize(("name", "hint"), [("mea", r'; did you mean "mean"\?'), ("xyz", r"\.")])
def test_an_unknown_name(name, hint):
    with pytest.raises(InputError, match=rf'^unknown thing "{name}"{hint} Known: gaussian, kernel, mean\.$'):
        lookup(dict.fromkeys(["mean", "gaussian", "kernel"]), name, "thing")


# ---- signatures

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

@dataclass(
    frozen=True,
)
class Fields:
    """Fields.

at the margin, as no statement is here"""

    width: int = 2

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
        ("Fields", "Fields.\n\nat the margin, as no statement is here", {"width": ("int", 2)}),
        ("Closed", "", {"only": ("Any", REQUIRED)}),
        ("Bare", "", {}),  # its base is not of this project
        ("Child", "", {"x": ("float", -1.5)}),
    ],
)  # fmt: skip
def test_what_is_read_from_source(source, name, doc, parameters):
    found = source(name)
    assert (found.doc, found.parameters) == (doc, parameters)


def test_names_that_are_not_defined(source):
    for name in ("Nothing", "Outer.Nothing", "REQUIRED"):
        with pytest.raises(ImportError, match=f"module_to_read_.* defines no {name}"):
            source(name)
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
    assert signature_of(LocalEngine).parameters == {"address": ("str | None", None)}  # read from its source


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


# ---- sections


def knn(k: Count = 5, weight: float = 1.0, hidden: int = 3):
    """Near ones."""


def needs(must: int, own: str = "a"):
    """Needs something."""


class Imputer(ChosenSection):
    registry: ClassVar[Registry] = Registry("imputer", {"knn_two": knn, "needs": needs})
    tag: ClassVar[str] = "method"
    leave_out: ClassVar[frozenset[str]] = frozenset({"hidden"})
    defaults: ClassVar[dict] = {"knn_two": {"k": 7}}


class Config(Section):
    imputer: Imputer


def chosen(**keys):
    return Config.model_validate({"imputer": keys}).imputer


def test_keys_are_the_parameters_of_what_is_named():
    made = chosen(method="knn_two", weight=2.0)
    assert made.model_dump() == {"method": "knn_two", "k": 7, "weight": 2.0}
    assert (type(made).__name__, type(made).__doc__) == ("KnnTwoImputer", "Near ones.")
    assert chosen(method="needs", must=3).must == 3
    assert [member.__name__ for member in Imputer.members()] == ["KnnTwoImputer", "NeedsImputer"]
    assert Imputer.member("needs") is Imputer.member("needs")
    assert Config(imputer=made).imputer is made
    assert Config(imputer=made).model_dump(mode="json") == {"imputer": {"method": "knn_two", "k": 7, "weight": 2.0}}
    with pytest.raises(ValidationError, match="frozen"):
        made.k = 3


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"method": "needs"}, "missing"), ({"method": "knn_two", "hidden": 1}, "extra_forbidden"),
        ({"method": "knn_two", "k": "3"}, "int_type"), ({"method": "knn_two", "k": 0}, "greater_than_equal"),
        ({"method": "nothing"}, "union_tag_invalid"), ({}, "union_tag_not_found"), (3, "dict_type"),
    ],
)  # fmt: skip
def test_what_is_refused(keys, kind):
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"imputer": keys})
    (error,) = caught.value.errors()
    assert error["type"] == kind
    if kind == "union_tag_invalid":
        assert error["ctx"] == {"discriminator": "method", "tag": "nothing", "expected_tags": "'knn_two', 'needs'"}
