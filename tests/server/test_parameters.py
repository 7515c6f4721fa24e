"""Parameters of a request at their limits."""

from __future__ import annotations

import pytest

from calmrl.errors import InputError
from calmrl.server import Limits
from calmrl.server.openapi import description
from calmrl.server.parameters import (
    BROWSE,
    SEARCH,
    Asked,
    _balanced,
    checked_text,
    from_pairs,
    from_query,
    weighted_words,
)

LIMITS = Limits(hits=50, characters=5, terms=2)


def test_what_is_not_given_is_as_described():
    asked = from_query(b"", SEARCH, LIMITS)
    assert asked == Asked(None, None, 24, 0, 60, (), (), None, None, False)
    paths = description(LIMITS, allow_add=False)["paths"]
    schemas = {
        one["name"]: one["schema"] for path in ("/api/search", "/api/items") for one in paths[path]["get"]["parameters"]
    }
    for name, least, most in (("k", 1, 50), ("limit", 1, 50), ("offset", 0, 10**9)):
        whole = {"type": "integer", "minimum": least, "maximum": most, "default": getattr(asked, name)}
        assert schemas[name] == whole
    assert schemas["hubs"] == {"type": "boolean", "default": asked.hubs}


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("k", "1", 1), ("k", "50", 50), ("k", "0", None), ("k", "51", None), ("limit", "50", 50), ("limit", "51", None),
        ("limit", "0", None), ("offset", "0", 0), ("offset", "1000000000", 10**9), ("offset", "1000000001", None),
        ("k", " 7 ", 7), ("k", "00000000007", 7), ("k", "000000000007", None), ("k", "\u0663", None), ("k", "-1", None),
        ("k", "1.5", None),
    ],
)  # fmt: skip
def test_whole_numbers(name, text, number):
    limits = Limits(hits=50)
    if number is None:
        with pytest.raises(InputError, match=f"{name} must be a whole number from"):
            from_pairs([(name, text)], (name,), limits)
    else:
        assert getattr(from_pairs([(name, text)], (name,), limits), name) == number


def test_long_names_and_values_are_cut_in_errors():
    with pytest.raises(InputError, match=f"got '{'9' * 80}'$"):
        from_pairs([("k", "9" * 90)], SEARCH, Limits())
    with pytest.raises(InputError, match=f"got '{'y' * 80}'$"):
        from_pairs([("hubs", "y" * 90)], SEARCH, Limits())
    with pytest.raises(InputError, match=f'unknown parameter "{"z" * 80}"'):
        from_pairs([("z" * 90, "1")], SEARCH, Limits())


def test_names_in_an_address():
    limits = Limits()
    assert from_query(b"hubs=TRUE&text=%20", SEARCH, limits) == Asked(hubs=True)
    assert from_query(b"hubs=false", SEARCH, limits) == Asked()
    assert from_query(b"having=a,%20b&having=c,,", BROWSE, limits).having == ("a", "b", "c")
    with pytest.raises(InputError, match="unknown parameter"):
        from_query(b"txt=", SEARCH, limits)  # without a value too
    with pytest.raises(InputError, match="text is given twice"):
        from_query(b"text=a&text=b", SEARCH, limits)
    assert from_query(b"&".join([b"having=a"] * 100), BROWSE, limits).having == ("a",) * 100
    with pytest.raises(InputError, match="the address cannot be read"):
        from_query(b"&".join([b"having=a"] * 101), BROWSE, limits)


@pytest.mark.parametrize("text", ["\t\n\r ", "abcde", "\ud7ff\ue000", ""])
def test_texts_that_are_let_through(text):
    assert checked_text("text", text, LIMITS) is text


@pytest.mark.parametrize("text", ["abcdef", "\x1f", "\0", "\x08", chr(0xD800), chr(0xDFFF)])
def test_texts_that_are_refused(text):
    with pytest.raises(InputError, match=r"text has 6 characters; at most 5|text contains control characters"):
        checked_text("text", text, LIMITS)


def test_terms_are_counted():
    assert weighted_words("2:dog - fruit", LIMITS) == [(2.0, "dog"), (-1.0, "fruit")]
    with pytest.raises(InputError, match="the query has 3 terms; at most 2 are allowed"):
        weighted_words("a + b + c", LIMITS)


@pytest.mark.parametrize("condition", ["a = 1", "(a = ')' or b = \"(\") and (c = 1)", "((a))", "a = 'it''s'"])
def test_conditions_that_close_what_they_open(condition):
    assert _balanced(condition) is condition
    label = Asked(label="it's", where=condition).filters()["where"]
    assert label == f"label = 'it''s' and ({condition})"
    assert Asked(where=condition).filters() == {"having": None, "lacking": None, "where": condition}
    assert Asked(label="a", having=("x",), lacking=("y",)).filters() == {
        "having": ["x"], "lacking": ["y"], "where": "label = 'a'",
    }  # fmt: skip


@pytest.mark.parametrize("condition", ["(a", "a)", "a) or (b", "a = 'b", 'a = "', "((a)", "'(' )"])
def test_conditions_that_do_not(condition):
    with pytest.raises(InputError, match="balance them"):
        _balanced(condition)
