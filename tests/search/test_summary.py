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
from calmrl.search import index as summary_module
from calmrl.search.index import Index, about, summary

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
    monkeypatch.setattr(summary_module, "patterns", lambda index: {f"p{j}": j for j in range(8, 0, -1)})
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
    monkeypatch.setattr(summary_module, "patterns", lambda index: {f"p{j}": j for j in range(10, 0, -1)})
    named = ", ".join(f"{j} p{j}" for j in range(10, 2, -1))
    assert summary(Held())[0] == f"5 items: {named}, and 2 more patterns"


@pytest.mark.parametrize("k", [0, -1, True, 1.5, "3"])
def test_at_least_one_hit_is_asked_for(k, bare):
    with pytest.raises(InputError, match=f"k is how many items to return, a whole number from 1 on; got {k!r}"):
        bare[0].search(text="a", k=k)


def test_what_is_known_about_encoders(monkeypatch):
    """Features that were imported have none."""
    monkeypatch.setattr(summary_module, "patterns", lambda index: {})
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


@pytest.fixture
def bare(monkeypatch):
    """An index without a table, and what is asked of it."""
    index = object.__new__(Index)
    index.path, index.layout = (
        "ix",
        {"search": "how", "modalities": {name: {} for name in "abcde"}, "width": 2, "encoders": None},
    )
    index._rows = SimpleNamespace(
        conditions=lambda *given: ["cond"] if any(given) else [],
        of_hits=["id"],
        hit=lambda row, similarity, *found: (row["id"], round(float(similarity), 6)),
    )
    asked = []

    def near_query(table, vector, k, how, filters, column="vector", metric="cosine"):
        rows = pa.table({"id": range(3), "_distance": [0.0, 0.1, 0.2], "nearness": [1.0, 0.7, 0.4]})

        def select(columns):
            asked.append((k, how, columns, filters, column))
            return SimpleNamespace(to_arrow=lambda: rows.select(columns))

        return SimpleNamespace(select=select)

    monkeypatch.setattr(index_module.store, "folder_at", lambda place: 7)
    index._place, index._folder = "ix", 7  # it was not made again
    index._columns = ["id"]  # of a table without checksums
    index.table = SimpleNamespace(checkout_latest=lambda: None)
    index._switch, index._seen = SimpleNamespace(checkout_latest=lambda: None, version=1), 1
    index._queries = SimpleNamespace(
        parts=lambda terms: ([("a", np.array([1.0, 0.0]))], "vector", {}), asked_with=lambda terms: []
    )
    monkeypatch.setattr(index_module.neighbours, "near_query", near_query)
    monkeypatch.setattr(Index, "hub_vectors", lambda self: np.eye(2, dtype=np.float32))
    return index, asked


def test_how_near_items_are_asked_for(bare):
    index, asked = bare
    assert index.search(text="a", words=False) == [(0, 1.0), (1, 0.9), (2, 0.8)]
    index.search(like=["x'y", "z"], k=3, where="w", words=False)
    index._queries.parts = lambda terms: ([("a", np.array([1.0, 0.0]))], "f_4", {})
    index.search(text="a", words=False)
    assert asked == [
        (10, "how", ["id", "_distance"], None, "vector"),
        (3, "how", ["id", "_distance"], "cond AND id NOT IN ('x''y', 'z')", "vector"),
        (10, None, ["id", "_distance"], "has_4", "f_4"),  # features are compared exactly
    ]
    with pytest.raises(InputError, match="hubs=True needs aligned modalities"):
        index.search(text="a", hubs=True)


@pytest.mark.parametrize(("k", "most"), [(2, 1000), (100, 1000), (101, 1010)])
def test_hubs_are_taken_back_among_many(k, most, bare):
    index, asked = bare
    hits = index.search(text="a", k=k, hubs=True, words=False)
    own = 0.5  # the mean cosine of (1, 0) with the two of the sample
    assert asked == [(most, "how", ["id", "nearness", "_distance"], None, "vector")]
    expected = [(2, 2 * 0.8 - own - 0.4), (1, 2 * 0.9 - own - 0.7), (0, 2 - own - 1.0)]
    assert hits == [(id, pytest.approx(score)) for id, score in expected][:k]


def test_pages_of_items(bare):
    index, _ = bare
    told = []

    class Query:
        def __getattr__(self, name):
            return lambda *given: told.append((name, *given)) or self

        def to_arrow(self):
            return pa.table({"id": []})

    index.table = SimpleNamespace(checkout_latest=lambda: None, search=Query)
    index._rows.of_items = ["id"]
    assert index.items() == []
    assert index.items(offset=0, limit=1, lacking="a") == []
    pages = [("offset", 0), ("limit", 50)], [("offset", 0), ("limit", 1), ("where", "cond")]
    assert told == [*pages[0], ("select", ["id"]), *pages[1], ("select", ["id"])]
    for page, reason in (({"offset": -1}, "offset is a whole number from 0 on; got -1"), ({"limit": 0}, "limit .* 1 on; got 0"),
                         ({"limit": True}, "got True"), ({"offset": "1"}, "got '1'")):  # fmt: skip
        with pytest.raises(InputError, match=reason):
            index.items(**page)


def test_an_index_of_features_knows_no_encoders(bare):
    index, _ = bare
    index.layout["modalities"] = {"a": {"encoder": None}}
    with pytest.raises(
        InputError, match="ix was made from features and knows no encoders; add features to it, not files"
    ):
        index.encoders()
