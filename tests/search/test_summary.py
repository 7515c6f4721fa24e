"""What an index says about itself, and how it is asked at its limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl.aligner.expected import expected_lines
from calmrl.errors import InputError
from calmrl.search import index as index_module
from calmrl.search import neighbours
from calmrl.search.hits import StoredItems
from calmrl.search.index import Index, about, summary
from calmrl.search.query import terms_of
from calmrl.search.searcher import Searcher

EXPECTED = {"text->image": {"R@1": 12.34, "R@10": 50.0, "low": 9.6, "high": 15.2, "n": 40}}


class Held:
    aligner = SimpleNamespace(base_=[], evidence_={}, summary=lambda: ["one space: a", *expected_lines(EXPECTED)])
    layout: ClassVar[dict] = {
        "search": {"index": "IVF", "recall@10": 0.9876, "queries": 100},
        "levels": {"image": {}},
        "modalities": {"image": {}},
    }

    def __len__(self):
        return 5

    def modalities(self):
        return {
            "image": {"aligned": True, "searchable": False, "why": None},
            "sound": {"aligned": False, "searchable": True, "why": "few pairs"},
        }


def test_sentences(monkeypatch):
    monkeypatch.setattr(index_module, "patterns", lambda index: {f"p{j}": j for j in range(8, 0, -1)})
    lines = summary(Held())
    assert lines[0] == "5 items: " + ", ".join(f"{j} p{j}" for j in range(8, 0, -1))  # eight are all named
    assert lines[1] == "one space: a"
    assert lines[3:] == [
        "  text->image  R@1  12.3 (10 to 15)  chance  2.5  R@10  50.0 chance 25.0  n 40",
        "image: no encoder is known, so only vectors and items of the index can ask with it",
        "sound is found only by sound itself, not by other modalities: few pairs",
        "search is approximate (IVF): it finds 98.8 % of the true ten nearest (100 items as queries)",
    ]


def test_the_patterns_after_the_eighth_are_counted(monkeypatch):
    monkeypatch.setattr(index_module, "patterns", lambda index: {f"p{j}": j for j in range(10, 0, -1)})
    named = ", ".join(f"{j} p{j}" for j in range(10, 2, -1))
    assert summary(Held())[0] == f"5 items: {named}, and 2 more patterns"


@pytest.mark.parametrize("k", [0, -1, True, 1.5, "3"])
def test_at_least_one_hit_is_asked_for(k, stored):
    with pytest.raises(InputError, match=f"k is how many items to return, a whole number from 1 on; got {k!r}"):
        Still(stored).search(text="a", k=k)


def test_what_is_known_about_encoders(monkeypatch):
    """Features that were imported have none."""
    monkeypatch.setattr(index_module, "patterns", lambda index: {})
    index = Held()
    index.refresh, index.path, index.table = lambda: None, "ix", SimpleNamespace(version=1)
    keys = ("width", "fitted_on", "search", "source", "made", "calmrl", "problems")
    entries = {"image": {"encoder": "see"}, "sound": {"encoder": None}}
    known = {"image": {"weights": "w", "signature": "s", "name": "n"}}
    for description, image in (
        (None, {"name": "see"}),
        ({"encoders": known}, {"name": "see", "weights": "w", "signature": "s"}),
    ):
        index.layout = dict.fromkeys(keys) | {"encoders": description, "modalities": entries}
        assert about(index)["encoders"] == {"image": image, "sound": {"name": None}}


class Still(Index):
    """An index that nobody changes."""

    def __init__(self, stored):
        self.path, self.layout, self.stored = stored.path, stored.layout, stored

    def refresh(self):
        pass


@pytest.fixture
def stored():
    """Items of a table without checksums that finds nothing."""
    layout = {
        "search": "how",
        "modalities": {name: {} for name in "abcde"},
        "width": 2,
        "encoders": None,
        "columns": {},
    }
    stored = StoredItems("ix", SimpleNamespace(schema=SimpleNamespace(names=["id"])), layout)
    stored.of_hits = stored.of_items = ["id"]
    return stored


@pytest.fixture
def searcher(monkeypatch, stored):
    """What searches three items, and what is asked of their table."""
    asked = []

    def near_query(table, vector, k, how, filters, column="vector", metric="cosine"):
        rows = pa.table({"id": range(3), "_distance": [0.0, 0.1, 0.2], "nearness": [1.0, 0.7, 0.4]})

        def select(columns):
            asked.append((k, how, columns, filters, column))
            return SimpleNamespace(to_arrow=lambda: rows.select(columns))

        return SimpleNamespace(select=select)

    stored.hit = lambda row, similarity, *found: (row["id"], round(float(similarity), 6))
    stored.hub_vectors = lambda: np.eye(2, dtype=np.float32)
    monkeypatch.setattr(neighbours, "near_query", near_query)
    queries = SimpleNamespace(
        aligner=None,
        parts=lambda terms: ([("a", np.array([1.0, 0.0]))], "vector", {}),
        asked_with=lambda terms: [],
    )
    return Searcher(stored, queries), asked


def search(searcher, k=10, conditions=(), hubs=False, **terms):
    return searcher.search(terms_of(terms), k, list(conditions), hubs, words=False, why=False)


def test_how_near_items_are_asked_for(searcher):
    searcher, asked = searcher
    assert search(searcher, text="a") == [(0, 1.0), (1, 0.9), (2, 0.8)]
    search(searcher, like=["x'y", "z"], k=3, conditions=["cond"])
    searcher.queries.parts = lambda terms: ([("a", np.array([1.0, 0.0]))], "f_4", {})
    search(searcher, text="a")
    assert asked == [
        (10, "how", ["id", "_distance"], None, "vector"),
        (3, "how", ["id", "_distance"], "cond AND id NOT IN ('x''y', 'z')", "vector"),
        (10, None, ["id", "_distance"], "has_4", "f_4"),  # features are compared exactly
    ]
    with pytest.raises(InputError, match="hubs=True needs aligned modalities"):
        search(searcher, text="a", hubs=True)


@pytest.mark.parametrize(("k", "most"), [(2, 1000), (100, 1000), (101, 1010)])
def test_hubs_are_taken_back_among_many(k, most, searcher):
    searcher, asked = searcher
    hits = search(searcher, text="a", k=k, hubs=True)
    own = 0.5  # the mean cosine of (1, 0) with the two of the sample
    assert asked == [(most, "how", ["id", "nearness", "_distance"], None, "vector")]
    expected = [(2, 2 * 0.8 - own - 0.4), (1, 2 * 0.9 - own - 0.7), (0, 2 - own - 1.0)]
    assert hits == [(id, pytest.approx(score)) for id, score in expected][:k]


def test_pages_of_items(stored):
    told = []

    class Query:
        def __getattr__(self, name):
            return lambda *given: told.append((name, *given)) or self

        def to_arrow(self):
            return pa.table({"id": []})

    stored.table = SimpleNamespace(search=Query)
    index = Still(stored)
    assert index.items() == []
    assert index.items(offset=0, limit=1, lacking="a") == []
    pages = [("offset", 0), ("limit", 50)], [("offset", 0), ("limit", 1), ("where", "NOT has_0")]
    assert told == [*pages[0], ("select", ["id"]), *pages[1], ("select", ["id"])]
    for page, reason in (({"offset": -1}, "offset is a whole number from 0 on; got -1"), ({"limit": 0}, "limit .* 1 on; got 0"),
                         ({"limit": True}, "got True"), ({"offset": "1"}, "got '1'")):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            index.items(**page)


def test_an_index_of_features_knows_no_encoders(stored):
    stored.layout["modalities"] = {"a": {"encoder": None}}
    with pytest.raises(
        InputError, match="ix was made from features and knows no encoders; add features to it, not files"
    ):
        Still(stored).encoders()
