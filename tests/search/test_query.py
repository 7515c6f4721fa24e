"""Terms with weights, from Python and from one text of the command line."""

from __future__ import annotations

import pytest

from calmrl.errors import InputError
from calmrl.search.query import Term, terms_of
from calmrl.search.typed import is_path, parse_query


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("dog", [(1.0, "dog")]),
        ("2:dog + ./pool.jpg - fruit", [(2.0, "dog"), (1.0, "./pool.jpg"), (-1.0, "fruit")]),
        ("a well-known dog", [(1.0, "a well-known dog")]),
        ("- fruit + .5:dog", [(-1.0, "fruit"), (0.5, "dog")]),
        ('2:"rock - paper" - "a + b"', [(2.0, "rock - paper"), (-1.0, "a + b")]),
        ("3:00 pm", [(1.0, "3:00 pm")]),
    ],
)
def test_terms_of_a_text(text, pairs) -> None:
    assert parse_query(text) == pairs


@pytest.mark.parametrize("text", ["", "  ", "dog + ", "dog - - cat", '""', "0:dog"])
def test_empty_terms_and_weights_are_refused(text) -> None:
    with pytest.raises(InputError):
        parse_query(text)


def test_terms_from_python() -> None:
    assert terms_of({"text": "a", "image": None}) == [Term("text", "a")]
    assert terms_of({"text": ["a", (-2, "b")], "like": (0.5, "x")}) == [
        Term("text", "a"),
        Term("text", "b", -2.0),
        Term("like", "x", 0.5),
    ]
    for given, reason in [({"text": None}, "empty"), ({"text": (1, 2, 3)}, "pair")]:
        with pytest.raises(InputError, match=reason):
            terms_of(given)
    for weight in (0, float("nan"), float("inf"), True, "2"):
        with pytest.raises(InputError, match="a weight is a finite number other than 0"):
            terms_of({"text": (weight, "a")})


def test_what_is_a_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pool.jpg").touch()
    (tmp_path / "dog").touch()
    assert is_path("pool.jpg")
    assert is_path("./pool.jpg")
    assert not is_path("dog")  # a word that happens to be a file
    assert not is_path("sea.jpg")
    assert not is_path("a\0b")
    with pytest.raises(InputError, match=r"there is no file \./sea\.jpg"):
        is_path("./sea.jpg")


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ('"', [(1.0, '"')]),
        ('"a"', [(1.0, "a")]),
        ('a"', [(1.0, 'a"')]),
        ("2.:a", [(2.0, "a")]),
        ("+ a - b", [(1.0, "a"), (-1.0, "b")]),
        ("a -b", [(1.0, "a -b")]),
        ("a - 2:b + 3:c", [(1.0, "a"), (-2.0, "b"), (3.0, "c")]),
    ],
)
def test_signs_quotes_and_weights(text, pairs) -> None:
    assert parse_query(text) == pairs


def test_errors_say_what_was_got(tmp_path, monkeypatch) -> None:
    with pytest.raises(InputError, match=r"the query 'dog \+ ' has an empty term; write it as in"):
        parse_query("dog + ")
    with pytest.raises(InputError, match=r"a weighted value of text is a pair \(weight, value\); got 3 entries"):
        terms_of({"text": (1, 2, 3)})
    with pytest.raises(InputError, match="the query is empty; give a text"):
        terms_of({"text": None, "image": []})
    monkeypatch.chdir(tmp_path)
    for path in ("../a.png", "/nowhere/a.png"):
        with pytest.raises(InputError, match="put a text that looks like a path into double quotes"):
            is_path(path)
