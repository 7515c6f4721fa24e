"""The aligner: fit with all its choosing against training contrastive heads with as many trials, and rows from disk.

Times are processor time. Generated rows: three modalities that show the same 32 latents through random linear maps and
tanh, with noise; three of ten blocks are missing. With little noise every candidate finds everything and the race between
them ends on the first fold; with much noise they differ, and several run on all folds.

Contrastive heads are linear, from random weights, 300 steps of 256 rows per trial, on all rows and without cross-validation.
They get one trial for every candidate that the aligner tried, on however many folds. One trial is timed and multiplied.

Sizes: ALIGNER_ROWS (10000) and ALIGNER_WIDTH (512) for the comparison, ALIGNER_DISK_ROWS (100000) and twice as many from disk
with width 256.
"""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from calmrl import Aligner
from calmrl.losses import ContrastiveLoss

ROWS = int(os.environ.get("ALIGNER_ROWS", "10000"))
WIDTH = int(os.environ.get("ALIGNER_WIDTH", "512"))
DISK_ROWS = int(os.environ.get("ALIGNER_DISK_ROWS", "100000"))
DISK_WIDTH = 256
NAMES = ("image", "text", "audio")
STEPS, BATCH, HEAD = 300, 256, 256


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    return [*(against_heads(noise) for noise in (0.3, 1.0, 3.0)), from_disk()]


def block(maps: list[np.ndarray], n: int, seed: int, noise: float = 0.3) -> tuple[list[np.ndarray], np.ndarray]:
    """(values per modality, present)."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, dtype=np.float32)

    latents = normal(n, len(maps[0]))
    z = [np.tanh(latents @ m) + np.float32(noise) * normal(n, m.shape[1]) for m in maps]
    present = random.random((n, len(maps))) > 0.3
    present[np.arange(n), random.integers(0, len(maps), n)] = True
    return z, present


def maps(width: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [(random.normal(size=(32, width)) / 6).astype(np.float32) for _ in NAMES]


def against_heads(noise: float) -> dict[str, Any]:
    values, present = block(maps(WIDTH), ROWS, 1, noise)
    z = dict(zip(NAMES, values, strict=True))
    start = time.process_time()
    aligner = Aligner().fit(z, present)
    ours = time.process_time() - start
    tried = aligner.choice_["candidates"]
    trials, folds = len(tried), sum(row["folds"] for row in tried)
    start = time.process_time()
    heads(z, present)
    theirs = trials * (time.process_time() - start)
    return {
        "case": f"{ROWS} x 3 x {WIDTH}, noise {noise}: time, contrastive heads / aligner",
        "ours_s": ours,
        "theirs_s": theirs,
        "ratio": theirs / ours,
        "target": ">= 5",
        "note": f"aligner {ours:.1f} s, {trials} candidates on {folds} folds in all; {trials} fits of heads {theirs:.1f} s",
    }


def heads(z: dict[str, np.ndarray], present: np.ndarray) -> None:
    """One trial: linear heads with all-pairs InfoNCE."""
    rows = {name: torch.from_numpy(values) for name, values in z.items()}
    mask = torch.from_numpy(present)
    layers = torch.nn.ModuleDict({name: torch.nn.Linear(values.shape[1], HEAD) for name, values in rows.items()})
    loss = ContrastiveLoss(anchor=None, label_smoothing=0.0)
    optimiser = torch.optim.AdamW([*layers.parameters(), *loss.parameters()], lr=1e-3)
    for _ in range(STEPS):
        index = torch.randint(len(mask), (BATCH,))
        unit = {name: normalize(layers[name](values[index]), dim=1) for name, values in rows.items()}
        optimiser.zero_grad()
        loss(unit, mask[index]).backward()
        optimiser.step()


def from_disk() -> dict[str, Any]:
    """Two sizes from memory-mapped files: time per row must not grow, memory must not follow the rows."""
    settings = {"features": "kernel", "unit_rows": True, "whitening": 0.5, "latent_dim": 128, "prior": 300.0}
    one, two = (fit_from_disk(rows, refine="never", **settings) for rows in (DISK_ROWS, 2 * DISK_ROWS))
    return {
        "case": f"{2 * DISK_ROWS} / {DISK_ROWS} x 3 x {DISK_WIDTH} from disk: time",
        "ours_s": one["seconds"],
        "theirs_s": two["seconds"],
        "ratio": two["seconds"] / one["seconds"],
        "target": "<= 2.2",
        "note": f"{one['seconds']:.0f} s and {two['seconds']:.0f} s; anonymous memory at most {one['anonymous_gb']:.2f} and "
        f"{two['anonymous_gb']:.2f} GB; with mapped pages {one['peak_gb']:.2f} and {two['peak_gb']:.2f} GB",
    }


def fit_from_disk(rows: int, **settings: Any) -> dict[str, Any]:
    """Processor seconds and peak memory of one fit; mapped pages count in "peak_gb", which only grows within a process."""
    with tempfile.TemporaryDirectory() as folder:
        z, present = _written(Path(folder), rows)
        start = time.process_time()
        with AnonymousPeak() as memory:
            aligner = Aligner(**settings).fit(z, present)
        seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    chosen = {key: aligner.choice_[key] for key in ("features", "whitening", "latent_dim", "prior", "refine_steps")}
    return {"rows": rows, "seconds": seconds, "anonymous_gb": memory.peak, "peak_gb": peak, **chosen}


class AnonymousPeak:
    """The most memory without mapped files that this process held, in GB, looked at twenty times a second."""

    def __enter__(self) -> AnonymousPeak:
        self.peak, self.stop = 0.0, threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.stop.wait(0.05):
            status = Path("/proc/self/status").read_text()
            self.peak = max(self.peak, int(status.split("RssAnon:")[1].split()[0]) / 1e6)


def _written(folder: Path, rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (rows, DISK_WIDTH)) for name in NAMES
    }
    present = np.empty((rows, len(NAMES)), dtype=bool)
    mixing, step = maps(DISK_WIDTH), 20_000
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        values, present[start:stop] = block(mixing, stop - start, start + 2)
        for file, part in zip(files.values(), values, strict=True):
            file[start:stop] = part
    for file in files.values():
        file.flush()
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in NAMES}, present
