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
    assert neighbours.hubness(UNIT[:1], UNIT[:1]).tolist() == pytest.approx([1])


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


@pytest.mark.parametrize(
    ("rows", "clusters", "probes"), [(1, 1, 1), (100, 10, 3), (60_000, 245, 16), (10**6, 1000, 32)]
)
def test_clusters_are_the_root_of_the_number_of_vectors(rows, clusters, probes, monkeypatch):
    made = []
    table = SimpleNamespace(create_index=lambda column, config, replace: made.append((column, config, replace)))
    monkeypatch.setattr(neighbours, "need", lambda *names: SimpleNamespace(IvfSq=lambda **settings: settings))
    monkeypatch.setattr(neighbours, "true_neighbours", lambda table, rows, metric: [])
    how = neighbours.build_ann(table, rows)
    settings = {"distance_type": "cosine", "num_partitions": clusters, "max_iterations": 10, "sample_rate": 64}
    assert made == [("vector", settings, True)]
    found = {"recall@10": 1.0, "queries": 0}
    assert how == {"index": "IVF_SQ", "clusters": clusters, "probes": probes, "refine": 5} | found


def test_recall_counts_others_only(monkeypatch):
    def near(table, vector, k, how, columns, metric):
        assert k == 11
        assert list(columns) == ["id"]
        return [{"id": id} for id in (table["exact"] if how is None else table["graph"])]

    monkeypatch.setattr(neighbours, "near", near)
    table = {"exact": list(range(11)), "graph": [0, 1, 2, 3, 4, 5, *range(20, 25)]}
    truth = [(UNIT[0], 0, neighbours._others(table, UNIT[0], 0, None, "cosine")), (UNIT[1], 99, set())]
    assert truth[0][2] == set(range(1, 11))
    assert neighbours._others(table, UNIT[0], 99, None, "cosine") == set(range(10))
    assert neighbours.recall(table, {}, truth) == (5 / 10 + 0) / 2


class Asked:
    """A query of LanceDB that writes down what it is told."""

    def __init__(self):
        self.told = {}

    def search(self, vector, vector_column_name):
        self.told |= {"vector": vector.tolist(), "dtype": vector.dtype, "column": vector_column_name}
        return self

    def __getattr__(self, name):
        return lambda *given, **named: self.told.update({name: (*given, *named.values())}) or self


@pytest.mark.parametrize(("k", "visited"), [(10, 200), (40, 200), (41, 205)])
def test_how_a_graph_is_asked(k, visited):
    asked = Asked()
    neighbours.near_query(asked, [1, 2], k, {"graphs": 3, "visited": 200, "refine": 5}, "id = 'a'")
    assert asked.told == {
        "vector": [1, 2], "dtype": np.float32, "column": "vector", "metric": ("cosine",), "limit": (k,), "nprobes": (3,),
        "ef": (visited,), "refine_factor": (5,), "where": ("id = 'a'", True),
    }  # fmt: skip


def test_how_clusters_are_asked():
    asked = Asked()
    neighbours.near_query(asked, [1, 2], 10, {"clusters": 9, "probes": 3, "refine": 5})
    told = {name: asked.told[name] for name in ("minimum_nprobes", "maximum_nprobes", "refine_factor")}
    assert told == {"minimum_nprobes": (3,), "maximum_nprobes": (0,), "refine_factor": (5,)}  # 0: all, where few match
    assert not {"ef", "nprobes", "bypass_vector_index"} & set(asked.told)


def test_how_a_small_table_is_asked():
    asked = Asked()
    assert neighbours.near_query(asked, [1, 2], 4, None, column="f_1") is asked
    assert asked.told == {
        "vector": [1, 2], "dtype": np.float32, "column": "f_1", "metric": ("cosine",), "limit": (4,),
        "bypass_vector_index": (),
    }  # fmt: skip


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
