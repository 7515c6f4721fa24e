"""Conditions: what they select, what they refuse, and that nothing typed reaches the database as it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from calmrl.errors import InputError
from calmrl.search.where import Column, quote, where_sql

lancedb = pytest.importorskip("lancedb", reason="the extra search is not installed")

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
        ("LABEL_IS", None),
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
    if ids is None:
        with pytest.raises(InputError):
            where_sql(expression, COLUMNS)
        return
    rows = table.search().where(where_sql(expression, COLUMNS)).limit(10).to_list()
    assert "".join(row["id"] for row in rows) == ids


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("lable = 'dog'", 'unknown column in where "lable"; did you mean "label"'),
        ("labels = 'dog'", "unknown column"),
        ("label = dog", "a text in single quotes"),
        ("label = 'a' or 1=1", "expected a column"),
        ("label = 'a'; drop table t", "cannot read '; drop"),
        ("label = 'a' --", "cannot read '--'"),
        ("size = 'a'", "expected a number"),
        ("glyph > true", "has no order"),
        ("size = 1e999", "too large a number"),
        ("label = 'a' label = 'b'", "'and', 'or' or the end"),
        ("(label = 'a'", r"expected '\)'"),
        ("", "expected a column"),
        ("not " * 60 + "size = 1", "nested deeper"),
        ("size = 1" + " or size = 1" * 1000, "at most 10000 characters"),
        ("label like 3", "a text in single quotes"),
        ("size like 'a'", "is no text"),
        ("label between 'a' and 'b'", "expected one of"),
    ],
)
def test_what_is_refused(expression, reason) -> None:
    with pytest.raises(InputError, match=reason):
        where_sql(expression, COLUMNS)


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
        ("size is null", "(x_0 IS NULL)"),
        ("size <> 2", "(NOT coalesce(x_0 = 2.0, false))"),
        ("size<=-1.5e1", "(x_0 <= -15.0)"),
        ("size > .5", "(x_0 > 0.5)"),
        ("id < 'b'", "(id < 'b')"),
        ("id like 'it''s'", "(id LIKE 'it''s')"),
        ("label not like 'a%'", "(NOT (array_to_string(labels, ', ') LIKE 'a%'))"),
        ("size in (1, 2)", "(coalesce(x_0 = 1.0, false) OR coalesce(x_0 = 2.0, false))"),
        ("size not in (1)", "(NOT (coalesce(x_0 = 1.0, false)))"),
        ("GLYPH_", None),
        ("glyph = TRUE", "coalesce(x_1 = true, false)"),
        (
            "size = 1 or size = 2 and not glyph = true",
            "(coalesce(x_0 = 1.0, false) OR (coalesce(x_0 = 2.0, false) AND (NOT coalesce(x_1 = true, false))))",
        ),
    ],
)
def test_conditions_as_sql(expression, sql) -> None:
    if sql is None:
        with pytest.raises(InputError, match='unknown column in where "GLYPH_"'):
            where_sql(expression, COLUMNS)
    else:
        assert where_sql(expression, COLUMNS) == sql


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("size not = 1", "expected like or in, got '='"),
        ("size in 1", r"expected '\(', got '1'"),
        ("size in (1 2)", r"expected '\)', got '2'"),
        ("size is 1", "expected 'null', got '1'"),
        ("size =", "expected a number, which size holds, got 'the end'"),
        ("glyph = 1", "expected true or false, which glyph holds"),
        ("label = 3", "expected a text in single quotes, which label holds"),
        ("label < 'a'", "label has no order, so < says nothing about it; use = or in"),
        ("= 1", r"expected a column \(id, label, size, glyph, my column\), got '='"),
        ("size size", "expected one of = != < <= > >= like in is, got 'size'"),
        ("size = -1e999", "-1e999 is too large a number"),
        ("'" + "x" * 40, f"cannot read {chr(34)}'{'x' * 29}{chr(34)}; texts stand in single quotes"),
        ("size = 1 " + "x" * 300, f"in 'size = 1 {'x' * 191}'$"),
    ],
)
def test_what_was_expected_is_said(expression, reason) -> None:
    with pytest.raises(InputError, match=reason):
        where_sql(expression, COLUMNS)
