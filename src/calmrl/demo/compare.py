"""Hide, complete, measure: one row per dataset, method and seed.

Error of a completion, over the hidden entries h of all modalities, with mu the mean of each column over all rows:

    nmse = sum_h (z_hat_h - z_h)^2 / sum_h (mu_h - z_h)^2

so that 0 is perfect and 1 is as good as the mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from calmrl.build import build_imputer
from calmrl.config import DemoConfig
from calmrl.data.missing import hide
from calmrl.datasets import load_dataset

Row = dict[str, Any]
Arrays = Mapping[str, np.ndarray]
TASK, METRIC = "imputation", "nmse"


def compare(config: DemoConfig, progress: Callable[[str], None]) -> tuple[list[Row], dict[str, Any]]:
    """Tidy rows and what is known about them. `progress(text)` is called before every fit.

    Everything runs on one thread: the matrices are small, and seconds are then comparable.
    """
    with one_thread():
        return _compare(config, progress)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch and the linear algebra below NumPy on one thread, for the time of the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def _compare(config: DemoConfig, progress: Callable[[str], None]) -> tuple[list[Row], dict[str, Any]]:
    rows: list[Row] = []
    meta: dict[str, Any] = {"datasets": {}, "config": config.model_dump(mode="json")}
    for dataset in config.datasets:
        data = load_dataset(dataset)
        z = {name: np.asarray(array, dtype=np.float32) for name, array in data.z.items()}
        meta["datasets"][dataset] = {
            "rows": len(data),
            "modalities": {name: array.shape[1] for name, array in z.items()},
            "source": data.source,
        }
        for seed in config.seeds:
            left = _hide(z, data.present, config, seed)
            hidden = data.present & ~left
            for method, section in config.imputers.items():
                progress(f"{dataset}, seed {seed}: {method}")
                start = time.perf_counter()
                filled = build_imputer(section, seed).fit(z, left).transform(z, left)
                seconds = time.perf_counter() - start
                row = {"dataset": dataset, "method": method, "seed": seed, "task": TASK, "metric": METRIC}
                rows.append(
                    row | {"value": nmse(z, filled, data.present, hidden), "n": int(hidden.sum()), "seconds": seconds}
                )
    return rows, meta


def steps(config: DemoConfig) -> int:
    """How many fits there will be."""
    return len(config.datasets) * len(config.seeds) * len(config.imputers)


def nmse(z: Arrays, filled: Arrays, present: np.ndarray, hidden: np.ndarray) -> float:
    """The error over the hidden blocks, relative to that of the column means over the present rows."""
    error = spread = 0.0
    for j, (name, truth) in enumerate(z.items()):
        at = hidden[:, j]
        error += float(((filled[name][at] - truth[at]) ** 2).sum())
        spread += float(((truth[present[:, j]].mean(axis=0) - truth[at]) ** 2).sum())
    return error / spread


def _hide(z: Arrays, present: np.ndarray, config: DemoConfig, seed: int) -> np.ndarray:
    options = {"values": z} if config.missing.kind == "value" else {}
    generator = np.random.default_rng(seed)
    return np.asarray(hide(present, config.missing.rate, generator, kind=config.missing.kind, **options))
