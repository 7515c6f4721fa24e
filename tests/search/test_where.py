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
