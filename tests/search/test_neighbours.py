"""Nearness against sorting everything, and how large tables are asked."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from calmrl.search import neighbours

RNG = np.random.default_rng(0)
UNIT = RNG.normal(size=(30, 5)).astype(np.float32)
UNIT /= np.linalg.norm(UNIT, axis=1, keepdims=True)


@pytest.mark.parametrize("block", [7, 4096])
@pytest.mark.parametrize("gallery", [30, 11, 10, 3])
def test_hubness_is_the_mean_of_the_ten_nearest(block, gallery, monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", block)
    assert neighbours.K == 10
    scores = np.sort(UNIT @ UNIT[:gallery].T, axis=1)[:, ::-1]
    found = neighbours.hubness(UNIT, UNIT[:gallery])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, scores[:, :10].mean(axis=1), rtol=1e-5)
    own = neighbours.hubness(UNIT[:gallery], UNIT[:gallery], own=True)
    np.testing.assert_allclose(own, scores[:gallery, 1:11].mean(axis=1), rtol=1e-4, atol=1e-6)


def test_hubness_of_nothing_is_zero():
    assert neighbours.hubness(UNIT, UNIT[:0]).tolist() == [0] * 30
    assert neighbours.hubness(UNIT[:1], UNIT[:1], own=True).tolist() == [0]


def test_a_sample_is_all_or_always_the_same(monkeypatch):
    monkeypatch.setattr(neighbours, "SAMPLE", 5)
    assert neighbours.hub_sample(5).tolist() == [0, 1, 2, 3, 4]
    drawn = neighbours.hub_sample(9)
    assert len(set(drawn.tolist())) == 5
    assert drawn.tolist() == sorted(drawn)
    assert drawn.tolist() == np.sort(np.random.default_rng(0).choice(9, 5, replace=False)).tolist()


def test_sizes_are_those_of_the_page():
    """As docs/how-to/search.md and the text at the top of the module have them."""
    assert (neighbours.EXACT_ROWS, neighbours.SAMPLE, neighbours.BLOCK) == (50_000, 4096, 4096)
    assert (neighbours.ENOUGH, neighbours.REFINE, neighbours.QUERIES) == (0.98, 5, 100)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_true_neighbours_are_those_of_sorting_everything(metric, monkeypatch):
    """Items without a place neither ask nor are found."""
    monkeypatch.setattr(neighbours, "BLOCK", 7)
    rows = 1 + RNG.random((200, 3)).astype(np.float32) * RNG.random((200, 1)).astype(np.float32)
    places = [None if i == 3 else vector.tolist() for i, vector in enumerate(rows)]
    schema = pa.schema([("id", pa.string()), ("vector", pa.list_(pa.float32(), 3))])
    held = pa.table({"id": [str(i) for i in range(200)], "vector": places}, schema=schema)

    class Table:
        def take_offsets(self, places):
            assert places == sorted(set(places))
            return SimpleNamespace(select=lambda columns: SimpleNamespace(to_arrow=lambda: held.take(places)))

        def search(self):
            return SimpleNamespace(select=lambda columns: SimpleNamespace(to_batches=held.to_batches))

    assert len(neighbours.true_neighbours(Table(), 200, metric)) in (99, 100)
    length = np.linalg.norm(rows, axis=1) if metric == "cosine" else np.ones(200)
    for vector, own, ids in neighbours.true_neighbours(Table(), 200, metric):
        assert np.array_equal(vector, rows[int(own)])
        scores = rows @ vector / length
        scores[[3, int(own)]] = -np.inf
        assert ids == {str(i) for i in np.argsort(-scores)[:10]}
    assert len(neighbours.true_neighbours(Table(), 5, metric)) == 4


class Asked:
    """A query of LanceDB that writes down what it is told."""

    def __init__(self):
        self.told = {}

    def search(self, vector, vector_column_name):
        self.told |= {"vector": vector.tolist(), "dtype": vector.dtype, "column": vector_column_name}
        return self

    def __getattr__(self, name):
        return lambda *given, **named: self.told.update({name: (*given, *named.values())}) or self


GRAPHS, CLUSTERS = {"graphs": 3, "visited": 200, "refine": 5}, {"clusters": 9, "probes": 3, "refine": 5}


@pytest.mark.parametrize(
    ("k", "how", "more"),
    [
        (40, GRAPHS, {"nprobes": (3,), "ef": (200,), "refine_factor": (5,)}),
        (41, GRAPHS, {"nprobes": (3,), "ef": (205,), "refine_factor": (5,)}),
        (10, CLUSTERS, {"minimum_nprobes": (3,), "maximum_nprobes": (0,), "refine_factor": (5,)}),  # 0: all, if need be
        (4, None, {"bypass_vector_index": ()}),
    ],
)
def test_how_a_table_is_asked(k, how, more):
    asked = Asked()
    neighbours.near_query(asked, [1, 2], k, how, "id = 'a'", "f_1")
    told = {"vector": [1, 2], "dtype": np.float32, "column": "f_1", "metric": ("cosine",), "limit": (k,)}
    assert asked.told == told | more | {"where": ("id = 'a'", True)}


def test_recall_counts_others_only(monkeypatch):
    def near_query(ids, vector, k, how, metric):
        assert k == 11
        rows = [{"id": id} for id in ids]
        return SimpleNamespace(select=lambda columns: SimpleNamespace(to_list=lambda: rows))

    monkeypatch.setattr(neighbours, "near_query", near_query)
    found = [0, 1, 2, 3, 4, 5, *range(20, 25)]
    assert neighbours.recall(found, {}, [(UNIT[0], 0, {*range(1, 11)}), (UNIT[1], 99, set())]) == (5 / 10 + 0) / 2


@pytest.mark.parametrize(
    ("rows", "shares", "clusters", "probes"),
    [
        (1, [1.0], 1, 1),
        (10**6, [1.0], 1000, 32),
        (60_000, [0.98], 245, 16),
        (60_000, [0.9, 0.96, 0.985], 245, 64),
        (60_000, [0.5, 0.5, 0.5, 0.5, 0.6], 245, 245),
    ],
)
def test_clusters_are_the_root_of_the_number_and_more_are_searched_until_they_hold_enough(
    rows, shares, clusters, probes, monkeypatch
):
    made, answers = [], iter(shares)
    table = SimpleNamespace(create_index=lambda column, config, replace: made.append((column, config, replace)))
    monkeypatch.setattr(neighbours, "need", lambda *names: SimpleNamespace(IvfSq=lambda **settings: settings))
    monkeypatch.setattr(neighbours, "true_neighbours", lambda table, rows, metric: [None] * 7)
    monkeypatch.setattr(neighbours, "recall", lambda table, how, truth, metric: next(answers))
    how = neighbours.build_ann(table, rows)
    settings = {"distance_type": "cosine", "num_partitions": clusters, "max_iterations": 10, "sample_rate": 64}
    assert made == [("vector", settings, True)]
    found = {"recall@10": shares[-1], "queries": 7}
    assert how == {"index": "IVF_SQ", "clusters": clusters, "probes": probes, "refine": 5} | found
