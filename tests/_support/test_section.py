"""Sections that are chosen by name from a registry."""

from __future__ import annotations

from typing import ClassVar

import pytest
from pydantic import ValidationError

from calmrl._support.arguments import Count
from calmrl._support.registry import Registry
from calmrl._support.section import ChosenSection, Section


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
    assert type(made).__name__ == "KnnTwoImputer"
    assert type(made).__doc__ == "Near ones."
    assert chosen(method="needs", must=3).must == 3
    assert [member.__name__ for member in Imputer.members()] == ["KnnTwoImputer", "NeedsImputer"]
    assert Imputer.member("needs") is Imputer.member("needs")
    assert Config(imputer=made).imputer is made
    assert Config(imputer=made).model_dump(mode="json") == {"imputer": {"method": "knn_two", "k": 7, "weight": 2.0}}


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


def test_sections_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        chosen(method="knn_two").k = 3
