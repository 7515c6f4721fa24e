"""Searching 1,000,000 vectors of width 256 on disk: LanceDB as an index uses it, beside FAISS (IVF and flat) in memory.

Each system runs in a process of its own (FAISS with one thread, LanceDB with as many as there are cores) and reports the time
to build (for LanceDB with measuring its recall), the latency of single queries, recall of the true ten nearest, and the peak
memory of the process. Vectors lie near a surface of 32 dimensions, as embeddings do; queries are other vectors of the same
kind. CALMRL_SEARCH_ROWS sets the number of vectors, CALMRL_SEARCH_FOLDER where they lie. FAISS comes with the extra `bench`.
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
from pathlib import Path
from typing import Any

import numpy as np

ROWS = int(os.environ.get("CALMRL_SEARCH_ROWS", "1000000"))
WIDTH, INNER, QUERIES, K = 256, 32, 200, 10
BLOCK = 50_000
SYSTEMS = ("lancedb", "faiss-ivf", "faiss-flat")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # LanceDB waits for itself for ever with a single thread: it keeps its own number


def block(number: int, rows: int) -> np.ndarray:
    """Unit vectors (rows, WIDTH), the same for the same number."""
    maps = np.random.default_rng(0)
    first, second = maps.normal(size=(INNER, WIDTH)), maps.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5
    rng = np.random.default_rng([1, number])
    curved = np.tanh(rng.standard_normal((rows, INNER)) @ first / INNER**0.5) @ second
    vectors = (curved + 0.1 * rng.standard_normal((rows, WIDTH))).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make(folder: Path) -> None:
    """vectors.npy and queries.npy"""
    out = np.lib.format.open_memmap(folder / "vectors.npy", mode="w+", dtype=np.float32, shape=(ROWS, WIDTH))
    for number, start in enumerate(range(0, ROWS, BLOCK)):
        out[start : start + BLOCK] = block(number, min(BLOCK, ROWS - start))
    out.flush()
    np.save(folder / "queries.npy", block(10**6, QUERIES))


def build_lancedb(folder: Path) -> Callable[[np.ndarray], list[int]]:
    import lancedb
    import pyarrow as pa

    from calmrl.search import neighbours

    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), WIDTH))])

    def batches():
        for start in range(0, ROWS, BLOCK):
            part = np.asarray(vectors[start : start + BLOCK])
            lists = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), WIDTH)
            ids = pa.array(np.arange(start, start + len(part)))
            yield pa.RecordBatch.from_arrays([ids, lists], schema=schema)

    table = lancedb.connect(folder / "lancedb").create_table("items", batches(), schema=schema)
    how = neighbours.build_ann(table, ROWS) if ROWS > neighbours.EXACT_ROWS else None
    return lambda query: [row["id"] for row in neighbours.near(table, query, K, how, ["id"])]


def build_faiss(folder: Path, kind: str) -> Callable[[np.ndarray], list[int]]:
    import faiss

    faiss.omp_set_num_threads(1)
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    index: Any = faiss.IndexFlatIP(WIDTH)
    if kind == "faiss-ivf":
        clusters = max(1, round(ROWS**0.5))
        index = faiss.IndexIVFFlat(index, WIDTH, clusters, faiss.METRIC_INNER_PRODUCT)
        index.train(np.asarray(vectors[:: max(1, ROWS // (50 * clusters))]))
        index.nprobe = min(clusters, max(20, round(2 * clusters**0.5)))
    for start in range(0, ROWS, BLOCK):
        index.add(np.asarray(vectors[start : start + BLOCK]))
    return lambda query: index.search(query[None], K)[1][0].tolist()


def measure(system: str, folder: Path) -> dict[str, Any]:
    """Build, then ask query by query."""
    begun, used = time.perf_counter(), time.process_time()
    search = build_lancedb(folder) if system == "lancedb" else build_faiss(folder, system)
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
    return {"build": built, "processor": used, "p50": p50, "p95": p95, "peak": peak, "answers": answers}


def run() -> list[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="search-", dir=os.environ.get("CALMRL_SEARCH_FOLDER")))
    try:
        make(folder)
        results = {}
        for system in SYSTEMS:
            command = [sys.executable, "-m", "benchmarks.search", system, str(folder)]
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | ONE_THREAD)
            results[system] = json.loads(done.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder)
    truth = [set(answer) for answer in results["faiss-flat"]["answers"]]
    return [row(system, results, truth) for system in SYSTEMS]


def row(system: str, results: dict[str, Any], truth: list[set[int]]) -> dict[str, Any]:
    """One system; the ratio is its recall, its times and memory are in the note."""
    mine, flat = results[system], results["faiss-flat"]
    recall = float(np.mean([len(t & set(answer)) / K for t, answer in zip(truth, mine["answers"], strict=True)]))
    return {
        "case": f"recall@10 of {system}, {ROWS:,} x {WIDTH}",
        "ours_s": mine["p50"],
        "theirs_s": flat["p50"],
        "ratio": recall,
        "target": ">= 0.95" if system == "lancedb" else "for comparison",
        "note": f"build {mine['build']:.0f} s ({mine['processor']:.0f} s of processor time), p50 {1e3 * mine['p50']:.1f} ms, "
        f"p95 {1e3 * mine['p95']:.1f} ms, peak {mine['peak']:.2f} GB",
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
