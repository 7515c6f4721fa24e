"""Holes inside a modality: digits in four quadrants, entries missing at random, beside two imputers of scikit-learn.

`ratio` is the squared error of what is missing relative to the column mean (1.0), `ours_s` processor seconds of fit and impute
with one thread, `theirs_s` those of `IterativeImputer`; the note has how much of what is missing 90 % intervals hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes the next import possible)
from sklearn.impute import IterativeImputer, KNNImputer

from calmrl.datasets import load_dataset
from calmrl.imputers import AutoImputer, GaussianImputer

RATES = (0.05, 0.2, 0.4, 0.6)
Answer = tuple[np.ndarray, np.ndarray | None]  # values, deviations


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    z = load_dataset("digits").z
    widths = [array.shape[1] for array in z.values()]
    truth = np.concatenate(list(z.values()), axis=1)
    methods: dict[str, Callable[[np.ndarray], Answer]] = {
        "IterativeImputer": lambda x: (
            IterativeImputer(random_state=0, keep_empty_features=True).fit_transform(x),
            None,
        ),
        "KNNImputer": lambda x: (KNNImputer(keep_empty_features=True).fit_transform(x), None),
        "GaussianImputer()": lambda x: GaussianImputer(blocks=widths).fit(x).impute(x, return_std=True),
        "GaussianImputer, all auto": lambda x: (
            GaussianImputer("auto", "auto", "auto", blocks=widths).fit(x).impute(x, return_std=True)
        ),
        "AutoImputer(['gaussian'])": lambda x: (
            AutoImputer(["gaussian"], blocks=widths).fit(x).impute(x, return_std=True)
        ),
    }
    rows = []
    for rate in RATES:
        gone = np.random.default_rng(1000 + round(100 * rate)).random(truth.shape) < rate
        x = np.where(gone, np.nan, truth)
        mean = np.square((np.nanmean(x, axis=0) - truth)[gone]).sum()
        first = None
        for name, method in methods.items():
            start = time.process_time()
            values, std = method(x)
            took = time.process_time() - start
            first = took if first is None else first
            inside = None if std is None else 100 * float((np.abs(values - truth) <= 1.6448536 * std)[gone].mean())
            rows.append(
                {
                    "case": f"digits, {100 * rate:.0f} % of entries: {name}",
                    "ours_s": took,
                    "theirs_s": first,
                    "ratio": float(np.square((values - truth)[gone]).sum() / mean),
                    "target": "none",
                    "note": "" if inside is None else f"{inside:.1f} % inside 90 % intervals",
                }
            )
    return rows
