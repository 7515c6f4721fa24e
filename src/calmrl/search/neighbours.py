"""Near vectors: exactly in small tables, through an index of clusters in large ones, and what hubs need to know.

Up to EXACT_ROWS items a search compares the query with every vector. Above, vectors are grouped into about sqrt(N) clusters and
stored in 8-bit pieces (IVF_PQ); a search looks into the nearest clusters and compares the best candidates exactly. How many of
the true ten nearest it finds is measured when the index is built, with items as queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from calmrl.errors import need

EXACT_ROWS = 1_000_000  # LanceDB 0.40 was seen to hang while it made clusters on a machine with two cores
PROBED = 20  # clusters that a search looks into, at least; above 100 clusters twice the root of their number
REFINE = 20  # so many times k candidates are compared exactly,
CANDIDATES = 200  # and at least so many
FINEST = 16  # pieces into which short vectors are cut; long ones into pieces of four numbers
QUERIES = 100  # to measure recall
K = 10
SAMPLE = 4096  # items that hubs are measured against
BLOCK = 4096
TRAINING = {"max_iterations": 20, "sample_rate": 64}  # of k-means: rounds, and vectors per cluster


def nearness(vectors: np.ndarray, gallery: np.ndarray, own: bool = False) -> np.ndarray:
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


def build_ann(table: Any, rows: int, width: int) -> dict[str, Any]:
    """Index the vectors of a large table; says how, and which recall it reaches."""
    partitions = max(1, round(math.sqrt(rows)))
    most = max(width // 4, min(width, FINEST))
    pieces = max(piece for piece in range(1, most + 1) if width % piece == 0)
    config = need("lancedb.index", "search", "An index").IvfPq(
        distance_type="cosine", num_partitions=partitions, num_sub_vectors=pieces, **TRAINING
    )
    table.create_index("vector", config=config, replace=True)
    how = {
        "index": "IVF_PQ",
        "partitions": partitions,
        "sub_vectors": pieces,
        "nprobes": probes(partitions),
        "refine": REFINE,
    }
    return how | {"recall@10": recall(table, how, rows), "queries": QUERIES}


def probes(partitions: int) -> int:
    """How many clusters a search looks into."""
    return min(partitions, max(PROBED, round(2 * math.sqrt(partitions))))


def recall(table: Any, how: dict[str, Any], rows: int) -> float:
    """Mean share of the true ten nearest that the index finds, items being the queries."""
    places = np.random.default_rng(0).choice(rows, min(rows, QUERIES), replace=False)
    taken = table.take_offsets(sorted(places.tolist())).select(["vector"]).to_arrow()["vector"].to_pylist()
    shares = []
    for vector in (np.asarray(value, np.float32) for value in taken if value is not None):
        exact = near(table, vector, K, None, ["id"])
        fast = near(table, vector, K, how, ["id"])
        truth = {row["id"] for row in exact}
        shares.append(len(truth & {row["id"] for row in fast}) / max(1, len(truth)))
    return float(np.mean(shares))


def near(
    table: Any,
    vector: np.ndarray,
    k: int,
    how: dict[str, Any] | None,
    columns: Iterable[str],
    where: str | None = None,
    column: str = "vector",
) -> list[dict[str, Any]]:
    """The k nearest rows by cosine, as dicts with `_distance`; `how` is None for exact search."""
    query = table.search(np.asarray(vector, np.float32), vector_column_name=column).metric("cosine").limit(k)
    query = (
        query.bypass_vector_index()
        if how is None
        else query.nprobes(how["nprobes"]).refine_factor(max(how["refine"], -(-CANDIDATES // k)))
    )
    if where:
        query = query.where(where, prefilter=True)
    return query.select([*columns, "_distance"]).to_list()
