"""Training, serving and adding at once, for as long as one likes: memory stays flat, and nothing is lost.

    python -m tests.soak --minutes 30

One process serves an index while 16 clients search it; another one adds and removes items in small commits; a third one trains
again and again. At the end the index must hold exactly the items that should be there, every answer must have been 200, every
run of training must have given the same model, and the memory of the server in the last third of the time must be at most 10 %
above that in the first third after warming up. Prints what happened; exit code 1 if anything else did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from calmrl import Index
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from tests.support.colour_world import settings

SERVE = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "serve.py"))
ROWS, BATCH, CLIENTS, ROUND = 2000, 5, 16, 200
KEPT = 400  # rows that are never removed: clients ask for the first items of the collection by id
TRAIN = ("train", "stamps", "stages=[{steps: 20}]", "checkpoint.every=5")
WARM, FLAT = 0.1, 1.1


def features(rows: np.ndarray) -> FeatureSet:
    """Rows of a made-up collection, the same for the same numbers; a third of the blocks is missing."""
    shared = np.random.default_rng(0).normal(size=(ROWS, 6))
    z, present = {}, np.random.default_rng(1).random((ROWS, 2)) < 0.67
    present[~present.any(axis=1), 0] = True
    for number, (name, width) in enumerate({"image": 24, "sound": 16}.items()):
        rng = np.random.default_rng([2, number])
        values = shared @ rng.normal(size=(6, width)) + 0.3 * rng.normal(size=(ROWS, width))
        z[name] = np.where(present[:, [number]], values, np.nan).astype(np.float32)[rows]
    meta = meta_table(len(rows), ids=[f"item {row}" for row in rows], text=[f"caption {row}" for row in rows])
    return FeatureSet(z, present[rows], meta)


class Soak:
    """The parts that run at once, and what they saw."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.until = folder, time.monotonic() + seconds
        self.errors: list[str] = []
        self.here = set(range(ROWS // 2))
        self.commits = self.trained = self.requests = 0
        self.memory: list[int] = []

    def over(self) -> bool:
        return time.monotonic() > self.until

    def change(self) -> None:
        """Add a few items, or remove a few, one commit after the other."""
        index, rng = Index.open(self.folder / "index"), np.random.default_rng(0)
        while not self.over():
            away = sorted(set(range(ROWS)) - self.here)
            if len(away) > ROWS // 4 and rng.random() < 0.6:
                rows = rng.choice(away, BATCH, replace=False)
                index.add(features(np.sort(rows)))
                self.here |= set(rows.tolist())
            else:
                rows = rng.choice(sorted(self.here - set(range(KEPT))), BATCH, replace=False)
                index.remove([f"item {row}" for row in rows])
                self.here -= set(rows.tolist())
            self.commits += 1
            time.sleep(0.5)

    def train(self) -> None:
        """The same training again and again; every run must end with the same model."""
        first = None
        while not self.over():
            out = self.folder / f"run {self.trained}"
            command = [sys.executable, "-m", "calmrl", *TRAIN, "--out", str(out)]
            ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            if ended.returncode:
                self.errors.append(f"training ended with {ended.returncode}: {ended.stderr[-500:]}")
                return
            model = {path.name: path.read_bytes() for path in sorted((out / "model").rglob("*.safetensors"))}
            first = first or model
            if not model or model != first:
                self.errors.append(f"training {self.trained} gave another model than the first one")
            self.trained += 1

    def ask(self, port: int, pid: int) -> None:
        """Rounds of requests; the server's memory after each."""
        while not self.over():
            result = asyncio.run(SERVE["load"](port, ROUND, CLIENTS, pid, []))
            self.errors += result["errors"]
            self.requests += result["requests"]
            self.memory.append(SERVE["rss"](pid))

    def run(self) -> None:
        Index.build(features(np.arange(ROWS // 2)), self.folder / "index", model=settings())
        server, port = SERVE["start"](self.folder / "index")
        parts = [self.change, self.train, lambda: self.ask(port, server.pid)]
        threads = [threading.Thread(target=self._guarded, args=(part,)) for part in parts]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            server.terminate()
            server.wait()
        self._check()

    def _guarded(self, part) -> None:
        try:
            part()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")

    def _check(self) -> None:
        index = Index.open(self.folder / "index")
        held = {item.id for start in range(0, ROWS, 500) for item in index.items(offset=start, limit=500)}
        expected = {f"item {row}" for row in self.here}
        if held != expected:
            self.errors.append(f"{len(expected - held)} items are lost, {len(held - expected)} should be gone")
        if not (self.commits and self.trained > 1 and self.memory):
            self.errors.append("too short: something never came to its end; give more minutes")

    def growth(self) -> float:
        """Memory in the last third by memory in the first third after warming up."""
        kept = self.memory[int(WARM * len(self.memory)) :]
        third = max(1, len(kept) // 3)
        return float(np.median(kept[-third:]) / np.median(kept[:third])) if kept else float("nan")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), 60 * options.minutes)
        soak.run()
    growth = soak.growth()
    if not growth <= FLAT:
        soak.errors.append(f"memory of the server grew by a factor of {growth:.2f}")
    print(
        json.dumps(
            {
                "minutes": options.minutes,
                "requests": soak.requests,
                "commits": soak.commits,
                "trainings": soak.trained,
                "items at the end": len(soak.here),
                "server MB, first and last": [round(value / 1e6) for value in (soak.memory[:1] + soak.memory[-1:])],
                "growth": round(growth, 3),
                "anything else": len(soak.errors),
                "sorts": Counter(error.split()[0] for error in soak.errors),
                "errors": soak.errors[:10] + soak.errors[10:][-10:],  # what is lost is said last
            },
            indent=2,
        )
    )
    return 1 if soak.errors else 0


if __name__ == "__main__":
    sys.exit(main())
