"""Searching 1,000,000 vectors of width 256: LanceDB on disk as an index uses it, beside FAISS (IVF and flat) in memory.

Each system runs in a process of its own (FAISS with one thread, LanceDB with as many as there are cores) and reports the time
to build (for LanceDB with measuring its recall), the latency of single queries, recall of the true ten nearest, and the peak
memory of the process. The vectors lie in a file, from which all systems read block by block; queries are other vectors of the
same kind. CALMRL_SEARCH_ROWS sets the number of vectors, CALMRL_SEARCH_FOLDER where they lie. FAISS comes with the extra
`bench`; without it LanceDB is measured alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROWS = int(os.environ.get("CALMRL_SEARCH_ROWS", "1000000"))
WIDTH, QUERIES, K = 256, 200, 10
CLUSTERS, INNER = 2000, 16  # as embeddings of real items: groups of very different sizes, each with few directions
BLOCK = 50_000
SYSTEMS = ("lancedb", "faiss-ivf", "faiss-flat")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # LanceDB waits for itself for ever with a single thread: it keeps its own number


# ---- the vectors


@cache
def mixture() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(centres (CLUSTERS, WIDTH), directions (CLUSTERS, INNER, WIDTH), shares (CLUSTERS,)).

    Centres lie on a curved surface of 24 dimensions, so that some clusters touch and others are far apart. The spread of a
    cluster falls from direction to direction, and its share of the vectors is that of Zipf's law.
    """
    rng = np.random.default_rng(0)
    curved = np.tanh(rng.normal(size=(CLUSTERS, 24)) @ rng.normal(size=(24, WIDTH)) / 24**0.5)
    spread = 0.7 / np.sqrt(np.arange(1, INNER + 1))
    directions = rng.normal(size=(CLUSTERS, INNER, WIDTH)) * spread[:, None] / WIDTH**0.5
    shares = 1 / np.arange(10, CLUSTERS + 10)
    centres = curved / np.linalg.norm(curved, axis=1, keepdims=True)
    return centres.astype(np.float32), directions.astype(np.float32), shares / shares.sum()


def block(number: int, rows: int) -> np.ndarray:
    """Unit vectors (rows, WIDTH), the same for the same number."""
    centres, directions, shares = mixture()
    rng = np.random.default_rng([1, number])
    cluster = rng.choice(CLUSTERS, rows, p=shares)
    inner = rng.standard_normal((rows, INNER), dtype=np.float32)
    vectors = centres[cluster] + 0.15 * rng.standard_normal((rows, WIDTH), dtype=np.float32) / WIDTH**0.5
    for c in np.unique(cluster):
        mine = cluster == c
        vectors[mine] += inner[mine] @ directions[c]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make(folder: Path) -> None:
    """vectors.npy and queries.npy"""
    out = np.lib.format.open_memmap(folder / "vectors.npy", mode="w+", dtype=np.float32, shape=(ROWS, WIDTH))
    for number, start in enumerate(range(0, ROWS, BLOCK)):
        out[start : start + BLOCK] = block(number, min(BLOCK, ROWS - start))
    out.flush()
    np.save(folder / "queries.npy", block(10**6, QUERIES))


def blocks(folder: Path) -> Any:
    """(row of the first, vectors) one block after the other."""
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    for start in range(0, ROWS, BLOCK):
        yield start, np.array(vectors[start : start + BLOCK])


def true_nearest(folder: Path) -> list[set[int]]:
    """The K nearest of each query, by comparing it with every vector."""
    queries = np.load(folder / "queries.npy")
    scores, rows = np.full((QUERIES, K), -np.inf, np.float32), np.zeros((QUERIES, K), np.int64)
    for start, vectors in blocks(folder):
        scores = np.hstack([scores, queries @ vectors.T])
        rows = np.hstack([rows, np.tile(np.arange(start, start + len(vectors)), (QUERIES, 1))])
        best = np.argpartition(-scores, K - 1, axis=1)[:, :K]
        scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
    return [set(row.tolist()) for row in rows]


# ---- the systems


def build_lancedb(folder: Path) -> tuple[Callable[[np.ndarray], list[int]], str]:
    """Written block by block and indexed as `calmrl index` does it."""
    import lancedb
    import pyarrow as pa

    from calmrl.search import neighbours

    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), WIDTH))])

    def batches():
        for start, vectors in blocks(folder):
            lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH)
            ids = pa.array(np.arange(start, start + len(vectors)))
            yield pa.RecordBatch.from_arrays([ids, lists], schema=schema)

    table = lancedb.connect(folder / "lancedb").create_table("items", batches(), schema=schema)
    how = neighbours.build_ann(table, ROWS) if ROWS > neighbours.EXACT_ROWS else None
    said = (
        "exact"
        if how is None
        else f"looks into {how['probes']} of {how['clusters']} clusters, says {how['recall@10']:.3f} of itself"
    )
    return lambda query: [
        row["id"] for row in neighbours.near_query(table, query, K, how).select(["id", "_distance"]).to_list()
    ], said


def build_faiss(folder: Path, system: str) -> tuple[Callable[[np.ndarray], list[int]], str]:
    """Flat, or with as many clusters as the root of the number of vectors."""
    import faiss

    faiss.omp_set_num_threads(1)
    index: Any = faiss.IndexFlatIP(WIDTH)
    settings = "exact"
    if system == "faiss-ivf":
        clusters = max(1, round(ROWS**0.5))
        index = faiss.IndexIVFFlat(index, WIDTH, clusters, faiss.METRIC_INNER_PRODUCT)
        vectors = np.load(folder / "vectors.npy", mmap_mode="r")
        index.train(np.array(vectors[:: max(1, ROWS // (50 * clusters))]))
        index.nprobe = min(clusters, max(20, round(2 * clusters**0.5)))
        settings = f"looks into {index.nprobe} of {clusters} clusters"
    for _, vectors in blocks(folder):
        index.add(vectors)
    return lambda query: index.search(query[None], K)[1][0].tolist(), settings


def measure(system: str, folder: Path) -> dict[str, Any]:
    """Build, then ask query by query."""
    begun, used = time.perf_counter(), time.process_time()
    search, settings = build_lancedb(folder) if system == "lancedb" else build_faiss(folder, system)
    built, used = time.perf_counter() - begun, time.process_time() - used
    queries = np.load(folder / "queries.npy")
    search(queries[0])  # the first one reads from disk
    seconds, answers = [], []
    for query in queries:
        begun = time.perf_counter()
        answers.append(search(query))
        seconds.append(time.perf_counter() - begun)
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) / 1e6 for line in file if line.startswith("VmHWM"))
    p50, p95 = np.percentile(seconds, [50, 95])
    times = {"build": built, "processor": used, "p50": p50, "p95": p95, "peak": peak}
    return times | {"answers": answers, "settings": settings}


# ---- the table


def run() -> list[dict[str, Any]]:
    systems = SYSTEMS
    if find_spec("faiss") is None:
        print("  FAISS is left out: pip install faiss-cpu, or calmrl[bench]", flush=True)
        systems = SYSTEMS[:1]
    folder = Path(tempfile.mkdtemp(prefix="search-", dir=os.environ.get("CALMRL_SEARCH_FOLDER")))
    try:
        make(folder)
        truth = true_nearest(folder)
        results = {}
        for system in systems:
            command = [sys.executable, "-m", "benchmarks.search", system, str(folder)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD)
            results[system] = json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder)
    return [row(system, results, truth) for system in systems]


def row(system: str, results: dict[str, Any], truth: list[set[int]]) -> dict[str, Any]:
    """One system; the ratio is its recall, its times and memory are in the note."""
    mine = results[system]
    recall = float(np.mean([len(t & set(answer)) / K for t, answer in zip(truth, mine["answers"], strict=True)]))
    return {
        "case": f"recall@10 of {system}, {ROWS:,} x {WIDTH}",
        "ours_s": mine["p50"],
        "theirs_s": results["faiss-flat"]["p50"] if "faiss-flat" in results else None,
        "ratio": recall,
        "target": ">= 0.95" if system == "lancedb" else "for comparison",
        "note": f"build {mine['build']:.1f} s ({mine['processor']:.1f} s of processor time), p50 {1e3 * mine['p50']:.1f} ms, "
        f"p95 {1e3 * mine['p95']:.1f} ms, peak {mine['peak']:.2f} GB, {mine['settings']}",
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
