"""Near vectors: exactly in small tables, in the nearest clusters of large ones, and what hubs need to know.

Up to EXACT_ROWS items a search compares the query with every vector. Above, vectors lie in clusters, as many as the root of
their number, in 8 bits per number (IVF_SQ); a search looks into the nearest clusters and compares the best candidates exactly.
How many of the true ten nearest it finds is measured when the index is built, with items as queries that do not count
themselves; where it finds fewer than ENOUGH of them, searches look into twice as many clusters. A graph (IVF_HNSW_SQ) takes far
longer to build for the same recall; indexes that have one are searched through it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from calmrl.errors import need

EXACT_ROWS = 50_000  # exact search of so many vectors of width 256 takes some 0.06 s of processor time
ROUNDS, ROWS_PER_CLUSTER = 10, 64  # of k-means; LanceDB's own 50 and 256 took twice as long, at the same recall
ENOUGH = 0.98  # recall of the true ten nearest, for items as queries
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
    clusters = max(1, round(rows**0.5))
    settings = {"distance_type": metric, "num_partitions": clusters}
    means = {"max_iterations": ROUNDS, "sample_rate": ROWS_PER_CLUSTER}
    config = need("lancedb.index", "search", "An index").IvfSq(**settings, **means)
    table.create_index("vector", config=config, replace=True)
    how: dict[str, Any] = {"index": "IVF_SQ", "clusters": clusters, "probes": round(clusters**0.5), "refine": REFINE}
    truth = true_neighbours(table, rows, metric)
    while (share := recall(table, how, truth, metric)) < ENOUGH and how["probes"] < clusters:
        how["probes"] = min(clusters, 2 * how["probes"])
    return how | {"recall@10": share, "queries": len(truth)}


def true_neighbours(table: Any, rows: int, metric: str = COSINE) -> list[tuple[np.ndarray, Any, set[Any]]]:
    """(vector, id, ids of the K nearest others) of some items, from one pass over all vectors."""
    places = np.random.default_rng(0).choice(rows, min(rows, QUERIES), replace=False)
    taken = table.take_offsets(sorted(places.tolist())).select(["id", "vector"]).to_arrow().to_pylist()
    items = [(np.asarray(row["vector"], np.float32), row["id"]) for row in taken if row["vector"] is not None]
    if not items:
        return []
    queries = np.stack([vector for vector, _ in items])
    scores, ids = np.zeros((len(items), 0), np.float32), np.zeros((len(items), 0), object)
    for batch in table.search().select(["id", "vector"]).to_batches(BLOCK):
        batch = batch.filter(batch["vector"].is_valid())
        if not len(batch):
            continue
        vectors = batch["vector"].flatten().to_numpy().reshape(-1, queries.shape[1])
        if metric == COSINE:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        here = queries @ vectors.T
        top = np.argpartition(-here, min(K, here.shape[1] - 1), axis=1)[:, : K + 1]
        scores = np.hstack([scores, np.take_along_axis(here, top, 1)])
        ids = np.hstack([ids, np.array(batch["id"].to_pylist(), object)[top]])
        best = np.argsort(-scores, axis=1)[:, : K + 1]
        scores, ids = np.take_along_axis(scores, best, 1), np.take_along_axis(ids, best, 1)
    return [
        (vector, own, set([id for id in found if id != own][:K]))
        for (vector, own), found in zip(items, ids.tolist(), strict=True)
    ]


def recall(
    table: Any, how: dict[str, Any], truth: list[tuple[np.ndarray, Any, set[Any]]], metric: str = COSINE
) -> float:
    """Mean share of the true nearest others that the index finds."""
    shares = [len(ids & _others(table, vector, own, how, metric)) / max(1, len(ids)) for vector, own, ids in truth]
    return float(np.mean(shares)) if shares else 1.0


def _others(table: Any, vector: np.ndarray, own: Any, how: dict[str, Any] | None, metric: str) -> set[Any]:
    """Ids of the K nearest rows other than the one that asks."""
    rows = near_query(table, vector, K + 1, how, metric=metric).select(["id", "_distance"]).to_list()
    return set([row["id"] for row in rows if row["id"] != own][:K])


def near_query(
    table: Any,
    vector: np.ndarray,
    k: int,
    how: dict[str, Any] | None,
    where: str | None = None,
    column: str = "vector",
    metric: str = COSINE,
) -> Any:
    """The query of LanceDB for the k nearest rows; `how` is None for exact search."""
    query = table.search(np.asarray(vector, np.float32), vector_column_name=column).metric(metric).limit(k)
    if how is None:
        query = query.bypass_vector_index()
    elif "graphs" in how:  # indexes that were built with graphs
        visited = max(how["visited"], k * how["refine"])
        query = query.nprobes(how["graphs"]).ef(visited).refine_factor(how["refine"])
    else:  # into more clusters, up to all, where a condition leaves fewer than k in the nearest
        query = query.minimum_nprobes(how["probes"]).maximum_nprobes(0).refine_factor(how["refine"])
    return query.where(where, prefilter=True) if where else query
