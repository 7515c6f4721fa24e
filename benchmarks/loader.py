"""Training from a feature directory of 1,000,000 rows x 4 x 512: how long the step waits, whether memory stays flat.

The directory (4 GB as float16) is written to a temporary folder and removed. Before each cold part its pages leave the
file cache, so that reading means reading the disk. One thread computes; reading happens beside it. Memory is compared
from the second tenth of the epoch on: in the first, buffers fill and the optimizer makes its state.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.writer import FeatureWriter
from calmrl.data.loaders.batches import Batches

ROWS, WIDTH, BATCH = 1_000_000, 512, 1024
NAMES = ("image", "text", "speech", "sound")
DTYPE = "float16"


def write(path: Path) -> FeatureSet:
    rng = np.random.default_rng(0)
    chunk = 1 << 14
    noise = {name: rng.normal(size=(2 * chunk, WIDTH)).astype(DTYPE) for name in NAMES}
    present = rng.random((ROWS, len(NAMES))) < 0.6
    present[~present.any(axis=1), 0] = True
    with FeatureWriter(path, dict.fromkeys(NAMES, WIDTH), range(ROWS), dtype=DTYPE) as writer:
        for start in range(0, ROWS, chunk):
            stop, shift = min(ROWS, start + chunk), int(rng.integers(chunk))
            part = {name: array[shift : shift + stop - start] for name, array in noise.items()}
            writer.fill(slice(start, stop), part, present[start:stop])
        return writer.finish()


def forget(path: Path) -> None:
    """Drop the files from the page cache."""
    for file in path.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident() -> float:
    """Memory of this process in MB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


class Step:
    """Four linear heads, a contrastive loss against the mean of the others, AdamW."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.heads = torch.nn.ModuleDict({name: torch.nn.Linear(WIDTH, 128) for name in NAMES})
        self.optimizer = torch.optim.AdamW(self.heads.parameters(), lr=1e-4)

    def __call__(self, batch: dict[str, Any]) -> None:
        z = torch.stack([self.heads[name](batch["z"][name]) for name in NAMES], dim=1)  # (n, k, d)
        z = torch.where(batch["present"][..., None], torch.nn.functional.normalize(z, dim=-1), 0.0)
        centre = torch.nn.functional.normalize(z.sum(dim=1), dim=-1)
        target = torch.arange(len(z))
        loss = sum(torch.nn.functional.cross_entropy(z[:, j] @ centre.T / 0.1, target) for j in range(len(NAMES)))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def train(features: FeatureSet) -> tuple[float, float, list[float]]:
    """(seconds of an epoch, seconds waited, memory along the way)."""
    step, batches, memory = Step(), Batches(features, BATCH), []
    start = time.perf_counter()
    for number, batch in enumerate(batches):
        step(batch)
        if number % 5 == 0:
            memory.append(resident())
    return time.perf_counter() - start, batches.waited, memory


def drain(batches: Iterable[Any], steps: int) -> float:
    start = time.perf_counter()
    for number, _ in enumerate(batches, 1):
        if number == steps:
            break
    return time.perf_counter() - start


def random_rows(features: FeatureSet) -> Iterable[dict[str, torch.Tensor]]:
    """What one would write first: a permutation of all rows, and indexing of the memory-mapped arrays."""
    order = np.random.default_rng(0).permutation(ROWS)
    for start in range(0, ROWS, BATCH):
        index = order[start : start + BATCH]
        yield {name: torch.from_numpy(array[index]).float() for name, array in features.z.items()}


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features"
        begun = time.perf_counter()
        features = write(path)
        wrote = time.perf_counter() - begun
        size = sum(file.stat().st_size for file in path.iterdir())

        forget(path)
        total, waited, memory = train(features)
        early, *later = [float(np.mean(part)) for part in np.array_split(memory, 10)[1:]]

        forget(path)
        ours = drain(Batches(features, BATCH), 200) / 200
        warm = drain(Batches(features, BATCH), 200) / 200
        forget(path)
        theirs = drain(random_rows(features), 20) / 20
    steps = -(-ROWS // BATCH)
    return [
        {
            "case": f"training epoch, {steps} steps of {BATCH}",
            "ours_s": total,
            "theirs_s": total - waited,
            "ratio": 1 - waited / total,
            "target": "> 0.9 busy",
            "note": f"waited {waited:.2f} s of {total:.1f} s",
        },
        {
            "case": "memory of the highest later tenth / second tenth",
            "ours_s": total,
            "theirs_s": total,
            "ratio": max(later) / early,
            "target": "< 1.05",
            "note": f"second tenth {early:.0f} MB, then {', '.join(f'{mean:.0f}' for mean in later)}; "
            f"at most {max(memory):.0f} MB at any time",
        },
        {
            "case": "loading alone against random rows, cold",
            "ours_s": ours,
            "theirs_s": theirs,
            "ratio": theirs / ours,
            "target": "> 1",
            "note": f"{BATCH / ours:,.0f} rows/s from disk, {BATCH / warm:,.0f} from the file cache",
        },
        {
            "case": "writing with checksums",
            "ours_s": wrote,
            "theirs_s": wrote,
            "ratio": size / wrote / 1e6,
            "target": "MB/s",
            "note": f"{size / 1e9:.2f} GB, every piece flushed to disk",
        },
    ]
