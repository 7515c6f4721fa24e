"""Imputing on a Ray cluster against one process: equality, throughput, cost per row, bytes on the network, memory.

Every case is a process of its own, one thread per worker, workers warm: what is timed is `calmrl.workflows.impute` with
ITERATIONS of EM. Processor time is that of the driver and of its tasks. More rows: python -m benchmarks.cluster 10000000
"""

from __future__ import annotations

import hashlib
import json
import pickle
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

WIDTHS = {"image": 64, "text": 64, "sound": 64}
LATENTS, ITERATIONS = 32, 8
SIZES = (100_000, 1_000_000)


def run(sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=".") as folder:
        timed = {n: _of_size(Path(folder), n) for n in sizes}
    rows = [row for n in sizes for row in _compared(n, timed[n])]
    first, last = sizes[0], sizes[-1]
    for name in ("local", "ray 2"):
        rate = {n: timed[n][name]["seconds"] / n for n in sizes}
        rows.append(_row(f"cost per row, {name}: {last:,} / {first:,}", rate[last] / rate[first], "near 1", rate))
    memory = {n: timed[n]["ray 2"]["driver_mb"] for n in sizes}
    rows.append(_row(f"memory of the driver: {last:,} / {first:,}", memory[last] / memory[first], "near 1", memory))
    return rows


def _row(case: str, ratio: float, target: str, note: Any) -> dict[str, Any]:
    return {"case": case, "ratio": ratio, "target": target, "note": json.dumps(note)}


def _compared(n: int, timed: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    seconds = {name: round(case["seconds"], 2) for name, case in timed.items()}
    used = {name: round(case["processor"], 2) for name, case in timed.items()}
    same = len({case["digest"] for case in timed.values()}) == 1
    sent = {key: timed["ray 1"][key] for key in ("sent", "received", "blocks")}
    return [
        _row(f"{n:,} rows: same bytes in all cases", float(same), "1", seconds),
        _row(f"{n:,} rows: one Ray worker / local", seconds["ray 1"] / seconds["local"], "<= 1.3", seconds),
        _row(f"{n:,} rows: the same, processor time", used["ray 1"] / used["local"], "<= 1.3", used),
        _row(f"{n:,} rows: two workers, times faster", seconds["ray 1"] / seconds["ray 2"], ">= 1.6", seconds),
        _row(f"{n:,} rows: bytes of a block, measured / formula", sent["received"] / formula(), "near 1", sent),
    ]


def formula() -> int:
    """Bytes that the statistics of one block hold, in float64: L x L and d x L sums."""
    k, L, d = len(WIDTHS), LATENTS, sum(WIDTHS.values())
    return 8 * (k + k * L + k * L * L + d * L + 2 * d + 1 + L + L * L + 1)


def _of_size(folder: Path, n: int) -> dict[str, dict[str, Any]]:
    features = folder / f"features{n}"
    _make(features, n)
    cases = {}
    for name in ("local", "ray 1", "ray 2"):
        command = [sys.executable, "-m", "benchmarks.cluster", "--case", name, str(features)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        cases[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"  {n:,} rows, {name}: {cases[name]}", flush=True)
    for file in features.iterdir():
        file.unlink()
    return cases


def _make(path: Path, n: int) -> None:
    """Rows from a latent model, a third of the blocks missing, written in pieces."""
    from calmrl.data import FeatureWriter, hide

    rng = np.random.default_rng(0)
    maps = {name: rng.normal(size=(8, width)) for name, width in WIDTHS.items()}
    with FeatureWriter(path, WIDTHS, range(n), dtype="float32") as writer:
        for start in range(0, n, 100_000):
            rows = min(100_000, n - start)
            shared = rng.normal(size=(rows, 8))
            z = {name: (shared @ m + rng.normal(size=(rows, m.shape[1]))).astype("float32") for name, m in maps.items()}
            writer.fill(slice(start, start + rows), z, hide(np.ones((rows, len(z)), dtype=bool), 0.3, rng))
        writer.finish()


def _case(name: str, features: Path) -> dict[str, Any]:
    from calmrl.config import load
    from calmrl.workflows.impute import impute

    warnings.simplefilter("ignore")
    chosen = [f"imputer.latent_dim={LATENTS}", f"imputer.max_iter={ITERATIONS}", "imputer.tol=1e-12"]
    config = load(None, ["imputer.method=gaussian", *chosen], kind="impute")
    engine: Any = "local" if name == "local" else _warm_engine(int(name.split()[1]))
    out = features.parent / name.replace(" ", "")
    start, used = time.perf_counter(), time.process_time()
    impute(features, out, config, engine=engine)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = sorted(file for file in out.iterdir() if file.suffix == ".npy")
    digest = hashlib.sha256("".join(_digest(file) for file in files).encode()).hexdigest()[:12]
    for file in out.iterdir():
        file.unlink()
    counted = {} if name == "local" else {key: getattr(engine, key) for key in ("sent", "received", "blocks")}
    processor = used + (0.0 if name == "local" else engine.processor)
    memory = peak / 1024
    return {"seconds": seconds, "processor": processor, "driver_mb": memory, "digest": digest, **counted}


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _warm_engine(workers: int) -> Any:
    import ray

    from calmrl._support.ray_engine import RayEngine

    class Counting(RayEngine):
        """Notes the bytes of one block of the E-step, what is sent with it and what comes back, and processor time."""

        sent = received = blocks = 0
        processor = 0.0

        def map(self, function: Any, items: Any, *shared: Any, device: str = "cpu") -> Any:
            items = list(items)
            is_step = any(getattr(one, "__name__", "") == "_block_statistics" for one in shared)
            for number, (used, result) in enumerate(super().map(_timed, items, function, *shared, device=device)):
                self.processor += used
                if is_step and not number and not self.sent:
                    self.sent, self.received = len(pickle.dumps(shared)), len(pickle.dumps(result))
                    self.blocks = len(items)
                yield result

    ray.init("local", num_cpus=workers, include_dashboard=False, object_store_memory=300 << 20, logging_level="error")
    engine = Counting()
    list(engine.map(_warm, range(8 * workers)))
    engine.processor = 0.0
    return engine


def _timed(item: Any, function: Any, *shared: Any) -> tuple[float, Any]:
    """(processor seconds, result)"""
    start = time.process_time()
    result = function(item, *shared)
    return time.process_time() - start, result


def _warm(_: int) -> None:
    import calmrl.workflows.impute  # noqa: F401

    time.sleep(0.2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(_case(sys.argv[2], Path(sys.argv[3]))))
    else:
        for row in run((SIZES[0], *(int(number) for number in sys.argv[1:]))):
            print(row)
