"""Holes inside a modality: entries missing at random, beside other imputers, on digits (four quadrants), `mfeat` and CLL.

`ratio` is the squared error of what is missing relative to the column mean (1.0), the mean of three masks, `ours_s` processor
seconds of fit and impute with one thread, `theirs_s` those of `IterativeImputer`; the note has half a 95 % interval over the
masks, how much of what is missing 90 % intervals hold, and how far `AutoImputer` is from it (negative: ours is smaller). For
the slow ones all have the same part of `mfeat` (500 rows) and CLL (200 rows), at most 60 columns of a modality, evenly spaced;
digits is whole. The modalities of these two are divided by their deviation first, so that none counts for its unit. They are
fetched as in `latent_quality` and `omics`, where soft-impute and mofapy2 (15 factors) are, too. Trees are those of missForest:
an `IterativeImputer` of random forests, 20 trees, three rounds.

CALMRL_BENCH_DATA chooses some of the data sets, CALMRL_BENCH_MASKS some of the masks, CALMRL_BENCH_METHODS some of the methods
(`AutoImputer` and `IterativeImputer` are always among them), all with commas; CALMRL_BENCH_CELLS=FOLDER keeps what was measured
and reads what is there.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 (makes the next import possible)
from sklearn.impute import IterativeImputer, KNNImputer

from benchmarks.latent_quality import complete
from benchmarks.omics import REACH, SoftImpute, cll, half, kept, mofa
from calmrl.imputers import AutoImputer, GaussianImputer

RATES = (0.05, 0.2, 0.4, 0.6)
MASKS = "1,2,3"
ROWS, COLUMNS = 500, 60  # at most, of mfeat and CLL, columns of each modality
Rows = dict[str, np.ndarray]
Answer = tuple[np.ndarray, np.ndarray | None]  # values, deviations


DATA: dict[str, Callable[[], Rows]] = {
    "digits": lambda: complete("digits"),
    "mfeat": lambda: in_one_unit(part_of(complete("mfeat"))),
    "CLL": lambda: in_one_unit(part_of(cll()[0])),
}


def part_of(z: Rows) -> Rows:
    def evenly(size: int, most: int) -> np.ndarray:
        return np.linspace(0, size - 1, min(size, most)).round().astype(int)

    return {name: array[evenly(len(array), ROWS)][:, evenly(array.shape[1], COLUMNS)] for name, array in z.items()}


def in_one_unit(z: Rows) -> Rows:
    return {name: array / np.sqrt(np.nanvar(array, axis=0).mean()) for name, array in z.items()}


def run() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted = os.environ.get("CALMRL_BENCH_DATA", ",".join(DATA)).split(",")
    masks = [int(mask) for mask in os.environ.get("CALMRL_BENCH_MASKS", MASKS).split(",")]
    asked = {*os.environ.get("CALMRL_BENCH_METHODS", ",".join(METHODS)).split(","), "AutoImputer", "IterativeImputer"}
    methods = [name for name in METHODS if name in asked]
    for name in wanted:
        z = DATA[name]()
        cells = {
            (mask, rate, method): kept(f"holes {name} {rate} {mask} {method}", partial(measured, z, rate, mask, method))
            for mask in masks
            for rate in RATES
            for method in methods
        }
        for rate in RATES:
            for method in methods:
                mine, auto, first = (
                    [cells[mask, rate, other] for mask in masks]
                    for other in (method, "AutoImputer", "IterativeImputer")
                )
                yield row(f"{name}, {100 * rate:.0f} % of entries: {method}", mine, auto, first)


def row(
    case: str, mine: list[dict[str, Any]], auto: list[dict[str, Any]], first: list[dict[str, Any]]
) -> dict[str, Any]:
    found, ours = (np.array([one["error"] for one in part]) for part in (mine, auto))
    took, theirs = (float(np.mean([one["took"] for one in part])) for part in (mine, first))
    note = f"+- {half(found):.3f} (auto {(ours - found).mean():+.3f} +- {half(ours - found):.3f}), {took:.1f} s"
    if mine[0]["inside"] is not None:
        note += ", 90 % intervals hold " + ", ".join(f"{100 * one['inside']:.1f}" for one in mine) + " %"
    return {
        "case": case,
        "ours_s": took,
        "theirs_s": theirs,
        "ratio": float(found.mean()),
        "target": "none",
        "note": note,
    }


def measured(z: Rows, rate: float, mask: int, method: str) -> dict[str, Any]:
    truth = np.concatenate(list(z.values()), axis=1)
    drawn = np.random.default_rng(1000 * mask + round(100 * rate)).random(truth.shape) < rate
    gone = drawn & ~np.isnan(truth)
    x = np.where(drawn, np.nan, truth)
    mean = np.square((np.nan_to_num(np.nanmean(x, axis=0)) - truth)[gone]).sum()
    start = time.process_time()
    values, std = METHODS[method](x, [array.shape[1] for array in z.values()])
    took = time.process_time() - start
    error = float(np.square((values - truth)[gone]).sum() / mean)
    inside = None if std is None else float((np.abs(values - truth) <= REACH * std)[gone].mean())
    print(f"    {rate} {mask} {method}: {error:.4f}, {inside}, {took:.1f} s", flush=True)
    return {"error": error, "inside": inside, "took": took}


def iterative(x: np.ndarray, widths: list[int]) -> Answer:
    few = {"n_nearest_features": 30, "max_iter": 3} if sum(widths) > 200 else {}
    return IterativeImputer(random_state=0, keep_empty_features=True, **few).fit_transform(x), None


def trees(x: np.ndarray, widths: list[int]) -> Answer:
    forest = RandomForestRegressor(20, max_features="sqrt", min_samples_leaf=2, random_state=0)
    return IterativeImputer(forest, max_iter=3, random_state=0, keep_empty_features=True).fit_transform(x), None


def softly(x: np.ndarray, widths: list[int]) -> Answer:
    centre = np.nan_to_num(np.nanmean(x, axis=0))
    return SoftImpute().fit_transform(x - centre) + centre, None


def by_factors(x: np.ndarray, widths: list[int]) -> Answer:
    blocks = np.split(x, np.cumsum(widths)[:-1], axis=1)
    values, _ = mofa({str(j): block for j, block in enumerate(blocks)})
    return np.concatenate(list(values.values()), axis=1), None


def ours(make: Callable[[list[int]], Any], x: np.ndarray, widths: list[int]) -> Answer:
    values, std = make(widths).fit(x).impute(x, return_std=True)
    return values, std


METHODS: dict[str, Callable[[np.ndarray, list[int]], Answer]] = {
    "IterativeImputer": iterative,
    "KNNImputer": lambda x, widths: (KNNImputer(keep_empty_features=True).fit_transform(x), None),
    "soft-impute": softly,
    "trees": trees,
    "mofapy2": by_factors,
    "GaussianImputer": partial(ours, lambda widths: GaussianImputer("auto", "auto", "auto", blocks=widths)),
    "AutoImputer": partial(ours, lambda widths: AutoImputer(blocks=widths)),
}
