"""Ranking queries against 100,000 items at width 512, one thread, processor time: against NumPy with a full sort.

"aligned": 100,000 queries. "hardly aligned": 20,000 queries whose own items lie in the middle of the others, where most
scores are close and float32 settles least.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from calmrl.metrics import retrieval

ITEMS, WIDTH = 100_000, 512
SORTED = 640  # queries that NumPy ranks; its time per query does not depend on their number
BLOCK = 128


def vectors(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Items, and queries that are items plus noise of so many times their length."""
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((ITEMS, WIDTH), dtype=np.float32)
    queries = rng.standard_normal((ITEMS, WIDTH), dtype=np.float32)
    queries *= noise
    queries += gallery
    return queries, gallery


def full_sort(queries: np.ndarray, gallery: np.ndarray, n: int) -> tuple[float, np.ndarray]:
    """(seconds for n queries, scaled up from SORTED of them; the ranks of these)."""
    begun = time.process_time()
    q, g = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries[:n], gallery))
    once, begun, ranks = time.process_time() - begun, time.process_time(), []
    for start in range(0, SORTED, BLOCK):
        order = np.argsort(-(q[start : start + BLOCK] @ g.T), axis=1)
        ranks.append(1 + (order == np.arange(start, start + BLOCK)[:, None]).argmax(axis=1))
    return once + (time.process_time() - begun) * n / SORTED, np.concatenate(ranks)


def measure(noise: float, n: int) -> dict[str, float]:
    """Ours for the first n queries, with the highest memory of the process."""
    queries, gallery = vectors(noise)
    begun = time.process_time()
    found = retrieval(queries[:n], gallery, range(n), range(ITEMS))
    seconds = time.process_time() - begun
    with open("/proc/self/status") as file:
        peak = next(int(line.split()[1]) / 1e6 for line in file if line.startswith("VmHWM"))
    return {**found, "seconds": seconds, "peak": peak}


def run() -> list[dict[str, Any]]:
    return compare("aligned", 4.0, ITEMS) + compare("hardly aligned", 40.0, 20_000)


def compare(name: str, noise: float, n: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.retrieval", str(noise), str(n)]
    ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    queries, gallery = vectors(noise)
    with threadpool_limits(1):
        theirs, ranks = full_sort(queries, gallery, n)
    part = retrieval(queries[:SORTED], gallery, range(SORTED), range(ITEMS))
    same = part["R@1"] == 100 * (ranks == 1).mean() and part["MedR"] == np.median(ranks)
    return [
        {
            "case": f"{n:,} queries, 100,000 items, {name}",
            "ours_s": ours["seconds"],
            "theirs_s": theirs,
            "ratio": theirs / ours["seconds"],
            "target": ">= 3",
            "note": f"NumPy with argsort, scaled linearly from {SORTED} queries, on which R@1 and MedR "
            f"{'agree' if same else 'DIFFER'}; all: R@1 {ours['R@1']:.1f}, MedR {ours['MedR']:g}",
        },
        {
            "case": f"peak memory in GB, {name}",
            "ours_s": ours["seconds"],
            "theirs_s": theirs,
            "ratio": ours["peak"],
            "target": "<= 4",
            "note": "VmHWM of a process that makes the vectors (0.4 GB) and ranks them",
        },
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(float(sys.argv[1]), int(sys.argv[2]))))
