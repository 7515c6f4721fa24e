"""A Ray cluster against one process: equality, throughput, cost per row, bytes on the network, memory.

One worker is a node with one core, two are two nodes with a core each; one thread per process. Imputing is
`calmrl.workflows.impute` with a fixed number of iterations of EM, embedding is `calmrl.workflows.extract` of pictures.
More rows, without the case of one worker: python -m benchmarks.cluster 10000000
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._cluster_case import LATENTS, WIDTHS, WORKS

SIZES = (100_000, 1_000_000)
PICTURES = 600
CASES = ("local", "ray 1", "ray 2")

Timed = dict[str, dict[str, Any]]  # engine -> what was measured


def run() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        timed = {n: measure("impute", Path(folder), n) for n in SIZES}
        embedded = measure("embed", Path(folder), PICTURES)
    rows = [row for n in SIZES for row in compared(f"{n:,} rows imputed", timed[n])]
    return [*rows, *compared(f"{PICTURES} pictures embedded", embedded), *scaling(timed)]


def measure(work: str, folder: Path, n: int, cases: tuple[str, ...] = CASES) -> Timed:
    """Every case of one work on n items."""
    given, timed = folder / f"{work}{n}", {}
    WORKS[work][1](given, n)
    for name in cases:
        command = [sys.executable, "-m", "benchmarks._cluster_case", work, name, str(given)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        timed[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"  {work} {n:,}, {name}: {timed[name]}", flush=True)
    shutil.rmtree(given)
    return timed


def compared(what: str, timed: Timed) -> list[dict[str, Any]]:
    seconds = {name: round(case["seconds"], 2) for name, case in timed.items()}
    used = {name: round(case["processor"], 2) for name, case in timed.items()}
    same = len({case["digest"] for case in timed.values()}) == 1
    rows = [
        _row(f"{what}: same bytes in all cases", float(same), "1", seconds),
        _row(f"{what}: one Ray worker / local", seconds["ray 1"] / seconds["local"], "<= 1.3", seconds),
        _row(f"{what}: the same, processor time", used["ray 1"] / used["local"], "<= 1.3", used),
        _row(f"{what}: two nodes, times faster", seconds["ray 1"] / seconds["ray 2"], ">= 1.6", seconds),
    ]
    sent = {key: timed["ray 2"][key] for key in ("sent", "received", "blocks", "network")}
    if sent["blocks"]:
        rows.append(_row(f"{what}: bytes of a block / formula", sent["received"] / formula(), "near 1", sent))
        whole = sent["blocks"] * sent["received"] + 2 * sent["sent"]
        rows.append(_row(f"{what}: bytes on the network / these", sent["network"] / whole, "near 1", sent))
    return rows


def scaling(timed: dict[int, Timed]) -> list[dict[str, Any]]:
    """How cost per row and memory change with the number of rows."""
    first, last = min(timed), max(timed)
    rows = []
    for name in ("local", "ray 2"):
        rate = {n: case[name]["seconds"] / n for n, case in timed.items()}
        rows.append(_row(f"cost per row, {name}: {last:,} / {first:,}", rate[last] / rate[first], "near 1", rate))
    for key in ("driver_mb", "worker_mb"):
        memory = {n: case["ray 2"][key] for n, case in timed.items()}
        rows.append(_row(f"{key}: {last:,} / {first:,}", memory[last] / memory[first], "near 1", memory))
    return rows


def formula() -> int:
    """Bytes that the statistics of one block hold, in float64: L x L and d x L sums."""
    k, L, d = len(WIDTHS), LATENTS, sum(WIDTHS.values())
    return 8 * (k + k * L + k * L * L + d * L + 2 * d + 1 + L + L * L + 1)


def _row(case: str, ratio: float, target: str, note: Any) -> dict[str, Any]:
    return {"case": case, "ratio": ratio, "target": target, "note": json.dumps(note)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as place:
        for number in sys.argv[1:]:
            measure("impute", Path(place), int(number), ("local", "ray 2"))
