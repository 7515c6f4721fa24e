"""Holes inside a modality: entries missing at random, beside other imputers, on digits (four quadrants), `mfeat` and CLL.

`ratio` is the squared error of what is missing relative to the column mean (1.0), `ours_s` processor seconds of fit and impute
with one thread, `theirs_s` those of `IterativeImputer`; the note has how much of what is missing 90 % intervals hold. The
modalities of `mfeat` and CLL are divided by their deviation first, so that none counts for its unit. They are
fetched as in `latent_quality` and `omics`, where soft-impute is, too.
CALMRL_BENCH_DATA chooses some of the data sets, by their names with commas.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes the next import possible)
from sklearn.impute import IterativeImputer, KNNImputer

from benchmarks.latent_quality import complete
from benchmarks.omics import SoftImpute, cll
from calmrl.imputers import AutoImputer, GaussianImputer

RATES = (0.05, 0.2, 0.4, 0.6)
Answer = tuple[np.ndarray, np.ndarray | None]  # values, deviations


DATA: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "digits": lambda: complete("digits"),
    "mfeat": lambda: in_one_unit(complete("mfeat")),
    "CLL": lambda: in_one_unit(cll()[0]),
}


def in_one_unit(z: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array / np.sqrt(np.nanvar(array, axis=0).mean()) for name, array in z.items()}


def run() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    wanted = os.environ.get("CALMRL_BENCH_DATA", ",".join(DATA)).split(",")
    for name in wanted:
        yield from measured(name, DATA[name]())


def measured(data: str, z: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    widths = [array.shape[1] for array in z.values()]
    truth = np.concatenate(list(z.values()), axis=1)
    few = {"n_nearest_features": 30, "max_iter": 3} if truth.shape[1] > 200 else {}
    methods: dict[str, Callable[[np.ndarray], Answer]] = {
        "IterativeImputer": lambda x: (
            IterativeImputer(random_state=0, keep_empty_features=True, **few).fit_transform(x),
            None,
        ),
        "KNNImputer": lambda x: (KNNImputer(keep_empty_features=True).fit_transform(x), None),
        "soft-impute": lambda x: (softly(x), None),
        "GaussianImputer, all auto": lambda x: (
            GaussianImputer("auto", "auto", "auto", blocks=widths).fit(x).impute(x, return_std=True)
        ),
        "AutoImputer(['gaussian'])": lambda x: (
            AutoImputer(["gaussian"], blocks=widths).fit(x).impute(x, return_std=True)
        ),
    }
    for rate in RATES:
        drawn = np.random.default_rng(1000 + round(100 * rate)).random(truth.shape) < rate
        gone = drawn & ~np.isnan(truth)
        x = np.where(drawn, np.nan, truth)
        mean = np.square((np.nan_to_num(np.nanmean(x, axis=0)) - truth)[gone]).sum()
        first = None
        for name, method in methods.items():
            start = time.process_time()
            values, std = method(x)
            took = time.process_time() - start
            first = took if first is None else first
            inside = None if std is None else 100 * float((np.abs(values - truth) <= 1.6448536 * std)[gone].mean())
            yield {
                "case": f"{data}, {100 * rate:.0f} % of entries: {name}",
                "ours_s": took,
                "theirs_s": first,
                "ratio": float(np.square((values - truth)[gone]).sum() / mean),
                "target": "none",
                "note": f"{took:.1f} s" + ("" if inside is None else f", {inside:.1f} % inside 90 % intervals"),
            }


def softly(x: np.ndarray) -> np.ndarray:
    centre = np.nan_to_num(np.nanmean(x, axis=0))
    return SoftImpute().fit_transform(x - centre) + centre
