"""Hide, complete, measure: one row per dataset, method and seed.

Error of a completion, over the hidden entries h of all modalities, with mu the mean of each column:

    nmse = sum_h (z_hat_h - z_h)^2 / sum_h (mu_h - z_h)^2

so that 0 is perfect and 1 is as good as the mean. A modality with large values does not count more than another: every
column is divided by its standard deviation first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from calmrl.build import build_imputer
from calmrl.config import DemoConfig
from calmrl.data.missing import hide
from calmrl.datasets import load_dataset

Row = dict[str, Any]
TASK, METRIC = "imputation", "nmse"


def compare(config: DemoConfig, progress: Callable[[str], None]) -> tuple[list[Row], dict[str, Any]]:
    """Tidy rows and what is known about them. `progress(text)` is called before every fit."""
    rows: list[Row] = []
    meta: dict[str, Any] = {"datasets": {}, "config": config.model_dump(mode="json")}
    for dataset in config.datasets:
        data = load_dataset(dataset)
        z = standardised(data.z, data.present)
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
                rows.append(row | {"value": nmse(z, filled, hidden), "n": int(hidden.sum()), "seconds": seconds})
    return rows, meta


def steps(config: DemoConfig) -> int:
    """How many fits there will be."""
    return len(config.datasets) * len(config.seeds) * len(config.imputers)


def nmse(z: dict[str, np.ndarray], filled: dict[str, np.ndarray], hidden: np.ndarray) -> float:
    """The error over the hidden blocks; `z` has column means 0, so the mean's error is the sum of squares."""
    error = sum(float(((filled[name] - z[name])[hidden[:, j]] ** 2).sum()) for j, name in enumerate(z))
    return error / sum(float((z[name][hidden[:, j]] ** 2).sum()) for j, name in enumerate(z))


def standardised(z: dict[str, np.ndarray], present: np.ndarray) -> dict[str, np.ndarray]:
    """Every column with mean 0 and standard deviation 1 over the observed rows; constant columns are left out."""
    out = {}
    for j, (name, array) in enumerate(z.items()):
        seen = np.asarray(array, dtype=np.float64)[present[:, j]]
        mean, std = seen.mean(axis=0), seen.std(axis=0)
        varies = std > 1e-6
        out[name] = np.where(present[:, j, None], (array[:, varies] - mean[varies]) / std[varies], np.nan)
    return out


def _hide(z: dict[str, np.ndarray], present: np.ndarray, config: DemoConfig, seed: int) -> np.ndarray:
    options = {"values": z} if config.missing.kind == "value" else {}
    generator = np.random.default_rng(seed)
    return np.asarray(hide(present, config.missing.rate, generator, kind=config.missing.kind, **options))
