"""Terms with weights, from Python and from one text of the command line."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from calmrl.errors import InputError
from calmrl.search.query import Term, terms_of
from calmrl.search.syntax import Column, is_path, parse_query, quote, where_sql

lancedb = pytest.importorskip("lancedb", reason="the extra search is not installed")


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
    for given, reason in [
        ({"text": None, "image": []}, "the query is empty; give a text"),
        ({"text": (1, 2, 3)}, r"a weighted value of text is a pair \(weight, value\); got 3 entries"),
    ]:
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
    for path in ("./sea.jpg", "../a.png", "/nowhere/a.png"):
        with pytest.raises(
            InputError, match=r"there is no file .* put a text that looks like a path into double quotes"
        ):
            is_path(path)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("dog", [(1.0, "dog")]),
        ("2:dog + ./pool.jpg - fruit", [(2.0, "dog"), (1.0, "./pool.jpg"), (-1.0, "fruit")]),
        ("a well-known dog", [(1.0, "a well-known dog")]),
        ("- fruit + .5:dog", [(-1.0, "fruit"), (0.5, "dog")]),
        ('2:"rock - paper" - "a + b"', [(2.0, "rock - paper"), (-1.0, "a + b")]),
        ("3:00 pm", [(1.0, "3:00 pm")]),
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


COLUMNS = {
    "id": Column("id", "text"),
    "label": Column("labels", "texts"),
    "size": Column("x_0", "number"),
    "glyph": Column("x_1", "flag"),
    "my column": Column("x_2", "text"),
}
ROWS = [
    {"id": "a", "labels": ["dog", "pet"], "x_0": 1.0, "x_1": True, "x_2": "x'; drop"},
    {"id": "b", "labels": ["cat"], "x_0": 2.0, "x_1": False, "x_2": None},
    {"id": "c", "labels": None, "x_0": None, "x_1": None, "x_2": "100%"},
]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("labels", pa.list_(pa.string())),
            ("x_0", pa.float64()),
            ("x_1", pa.bool_()),
            ("x_2", pa.string()),
        ]
    )
    return lancedb.connect(tmp_path_factory.mktemp("db")).create_table("t", pa.Table.from_pylist(ROWS, schema=schema))


@pytest.mark.parametrize(
    ("expression", "ids"),
    [
        ("label = 'dog'", "a"),
        ("label != 'dog'", "bc"),
        ("label in ('cat', 'pet')", "ab"),
        ("label not in ('cat')", "ac"),
        ("label is null", "c"),
        ("size >= 2", "b"),
        ("size < 2 or size > 1e3", "a"),
        ("not (size = 1 or glyph = false)", "c"),
        ("glyph = true and label like '%o%'", "a"),
        ("\"my column\" = 'x''; drop'", "a"),
        ("\"my column\" like '100_'", "c"),
        ("id = 'a' or id = 'b' and size = 1", "a"),
    ],
)
def test_conditions_select(table, expression, ids) -> None:
    rows = table.search().where(where_sql(expression, COLUMNS)).limit(10).to_list()
    assert "".join(row["id"] for row in rows) == ids


def test_quotes_cannot_be_left() -> None:
    rng = np.random.default_rng(0)
    letters = ["'", '"', "\\", ";", "-", "a", " ", "`", "\n"]
    for _ in range(200):
        text = "".join(rng.choice(letters, 8))
        inner = quote(text)[1:-1]
        assert inner.replace("''", "").count("'") == 0
        assert inner.replace("''", "'") == text
    with pytest.raises(InputError, match="NUL"):
        quote("a\0b")


def test_limits_of_a_condition() -> None:
    longest = "size = 1" + " " * (10_000 - 8)
    assert where_sql(longest, COLUMNS) == "coalesce(x_0 = 1.0, false)"
    with pytest.raises(InputError, match="a text of at most 10000 characters"):
        where_sql(longest + " ", COLUMNS)
    with pytest.raises(InputError, match="a text of at most"):
        where_sql(3, COLUMNS)
    assert where_sql("not " * 49 + "size = 1", COLUMNS).count("NOT") == 49
    with pytest.raises(InputError, match="nested deeper than 50; write it flatter"):
        where_sql("not " * 50 + "size = 1", COLUMNS)
    flat = " and ".join(["(size = 1)"] * 60)  # side by side is not deep
    assert where_sql(flat, COLUMNS).count("AND") == 59


@pytest.mark.parametrize(
    ("expression", "sql"),
    [
        ("label is not null", "(labels IS NOT NULL)"),
        ("size <> 2", "(NOT coalesce(x_0 = 2.0, false))"),
        ("size<=-1.5e1", "(x_0 <= -15.0)"),
        ("size > .5", "(x_0 > 0.5)"),
        ("id < 'b'", "(id < 'b')"),
        ("id like 'it''s'", "(id LIKE 'it''s')"),
        ("label not like 'a%'", "(NOT (array_to_string(labels, ', ') LIKE 'a%'))"),
        ("size in (1, 2)", "(coalesce(x_0 = 1.0, false) OR coalesce(x_0 = 2.0, false))"),
        ("glyph = TRUE", "coalesce(x_1 = true, false)"),
        (
            "size = 1 or size = 2 and not glyph = true",
            "(coalesce(x_0 = 1.0, false) OR (coalesce(x_0 = 2.0, false) AND (NOT coalesce(x_1 = true, false))))",
        ),
    ],
)
def test_conditions_as_sql(expression, sql) -> None:
    assert where_sql(expression, COLUMNS) == sql


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("lable = 'dog'", 'unknown column in where "lable"; did you mean "label"'),
        ("LABEL_IS", 'unknown column in where "LABEL_IS"'),
        ("label = 'a' or 1=1", r"expected a column \(id, label, size, glyph, my column\), got '1'"),
        ("", "expected a column"),
        ("label = 'a'; drop table t", "cannot read '; drop"),
        ("label = 'a' --", "cannot read '--'"),
        ("'" + "x" * 40, f"cannot read {chr(34)}'{'x' * 29}{chr(34)}; texts stand in single quotes"),
        ("label = dog", "expected a text in single quotes, which label holds"),
        ("label = 3", "a text in single quotes"),
        ("label like 3", "a text in single quotes"),
        ("size like 'a'", "is no text"),
        ("size = 'a'", "expected a number"),
        ("size =", "expected a number, which size holds, got 'the end'"),
        ("size = -1e999", "-1e999 is too large a number"),
        ("glyph = 1", "expected true or false, which glyph holds"),
        ("glyph > true", "glyph has no order, so > says nothing about it; use = or in"),
        ("label < 'a'", "label has no order"),
        ("label = 'a' label = 'b'", "'and', 'or' or the end"),
        ("(label = 'a'", r"expected '\)'"),
        ("size not = 1", "expected like or in, got '='"),
        ("size in 1", r"expected '\(', got '1'"),
        ("size in (1 2)", r"expected '\)', got '2'"),
        ("size is 1", "expected 'null', got '1'"),
        ("size size", "expected one of = != < <= > >= like in is, got 'size'"),
        ("size = 1 " + "x" * 300, f"in 'size = 1 {'x' * 191}'$"),
    ],
)
def test_what_is_refused(expression, reason) -> None:
    with pytest.raises(InputError, match=reason):
        where_sql(expression, COLUMNS)
