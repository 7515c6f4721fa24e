"""Registries: entries that are imported when they are used, and names that are nearly right."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from calmrl._support.registry import Registry, closest, lookup
from calmrl.errors import InputError
from calmrl.losses import LOSSES, PMRLLoss


def test_a_registry_is_a_dict():
    held: Registry[Any] = Registry("thing", {"path": "pathlib:Path", "three": 3})
    assert repr(held) == "Registry(thing: path, three)"
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
