"""Near vectors: exactly in small tables, through a graph in large ones, and what hubs need to know.

Up to EXACT_ROWS items a search compares the query with every vector. Above, vectors are linked to their neighbours in a graph
that holds them in 8 bits per number (IVF_HNSW_SQ, a graph for each GRAPH_ROWS vectors); a search walks through the graphs and
compares the best candidates exactly. How many of the true ten nearest it finds is measured when the index is built, with
items as queries that do not count themselves; where it finds fewer than ENOUGH of them, searches visit twice as many nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from calmrl.errors import need

EXACT_ROWS = 50_000  # exact search of so many vectors of width 256 takes some 0.06 s of processor time
GRAPH_ROWS = 1_000_000  # vectors per graph, at most
LINKS, CONSIDERED = 16, 150  # of each node, and how many are looked at to choose them
VISITED = 200  # nodes of a graph that a search keeps in mind, at least
MOST_VISITED = 1600
ENOUGH = 0.97  # recall of the true ten nearest, for items as queries
REFINE = 5  # so many times k candidates are compared exactly
QUERIES = 100  # to measure recall
K = 10
SAMPLE = 4096  # items that hubs are measured against
BLOCK = 4096
COSINE, DOT = "cosine", "dot"  # between unit vectors, and where shorter ones are less certain


def hubness(vectors: np.ndarray, gallery: np.ndarray, own: bool = False) -> np.ndarray:
    """r(g), the mean cosine of each vector with its K nearest in a gallery of unit vectors; (N,) float32.

    With `own` the vectors are among the gallery, so the nearest one, the vector itself, does not count.
    """
    out = np.zeros(len(vectors), np.float32)
    most = min(K + own, len(gallery))
    if most <= own:
        return out
    for start in range(0, len(vectors), BLOCK):
        scores = np.asarray(vectors[start : start + BLOCK]) @ gallery.T
        best = -np.sort(-np.partition(scores, scores.shape[1] - most, axis=1)[:, -most:], axis=1)
        out[start : start + BLOCK] = best[:, int(own) :].mean(axis=1)
    return out


def hub_sample(count: int) -> np.ndarray:
    """The rows that stand for the queries of CSLS: all, or a random SAMPLE, always the same."""
    return np.arange(count) if count <= SAMPLE else np.sort(np.random.default_rng(0).choice(count, SAMPLE, False))


def build_ann(table: Any, rows: int, metric: str = COSINE) -> dict[str, Any]:
    """Index the vectors of a large table; says how it is searched, and which recall that reaches."""
    graphs = -(-rows // GRAPH_ROWS)
    settings = {"distance_type": metric, "num_partitions": graphs, "m": LINKS, "ef_construction": CONSIDERED}
    config = need("lancedb.index", "search", "An index").HnswSq(**settings)
    table.create_index("vector", config=config, replace=True)
    how: dict[str, Any] = {"index": "IVF_HNSW_SQ", "graphs": graphs, "visited": VISITED, "refine": REFINE}
    truth = true_neighbours(table, rows, metric)
    while (share := recall(table, how, truth, metric)) < ENOUGH and how["visited"] < MOST_VISITED:
        how["visited"] *= 2
    return how | {"recall@10": share, "queries": len(truth)}


def true_neighbours(table: Any, rows: int, metric: str = COSINE) -> list[tuple[np.ndarray, Any, set[Any]]]:
    """(vector, id, ids of the K nearest others) of some items, by exact search."""
    places = np.random.default_rng(0).choice(rows, min(rows, QUERIES), replace=False)
    taken = table.take_offsets(sorted(places.tolist())).select(["id", "vector"]).to_arrow().to_pylist()
    items = [(np.asarray(row["vector"], np.float32), row["id"]) for row in taken if row["vector"] is not None]
    return [(vector, own, _others(table, vector, own, None, metric)) for vector, own in items]


def recall(
    table: Any, how: dict[str, Any], truth: list[tuple[np.ndarray, Any, set[Any]]], metric: str = COSINE
) -> float:
    """Mean share of the true nearest others that the index finds."""
    shares = [len(ids & _others(table, vector, own, how, metric)) / max(1, len(ids)) for vector, own, ids in truth]
    return float(np.mean(shares)) if shares else 1.0


def _others(table: Any, vector: np.ndarray, own: Any, how: dict[str, Any] | None, metric: str) -> set[Any]:
    """Ids of the K nearest rows other than the one that asks."""
    ids = [row["id"] for row in near(table, vector, K + 1, how, ["id"], metric=metric)]
    return set([id for id in ids if id != own][:K])


def near(
    table: Any,
    vector: np.ndarray,
    k: int,
    how: dict[str, Any] | None,
    columns: Iterable[str],
    where: str | None = None,
    column: str = "vector",
    metric: str = COSINE,
) -> list[dict[str, Any]]:
    """The k nearest rows, as dicts with `_distance`; `how` is None for exact search."""
    return near_query(table, vector, k, how, where, column, metric).select([*columns, "_distance"]).to_list()


def near_query(
    table: Any,
    vector: np.ndarray,
    k: int,
    how: dict[str, Any] | None,
    where: str | None = None,
    column: str = "vector",
    metric: str = COSINE,
) -> Any:
    """The query of LanceDB that `near` runs."""
    query = table.search(np.asarray(vector, np.float32), vector_column_name=column).metric(metric).limit(k)
    if how is None:
        query = query.bypass_vector_index()
    else:
        visited = max(how["visited"], k * how["refine"])
        query = query.nprobes(how["graphs"]).ef(visited).refine_factor(how["refine"])
    return query.where(where, prefilter=True) if where else query
