"""Does what `calmrl impute` writes by default keep its word? Error and coverage of `auto` per modality, on four collections.

A fifth of the observed blocks is hidden, every row keeps one; blocks that are missing by nature stay missing. `auto` is fitted
on what is left and imputes each hidden block from the other modalities of its row. `ratio` is the normalised error
(squared error / squared deviation from the column mean; 1.0 is as good as the mean), and the note says how many of the values
lie inside 95 % intervals and which warnings of `calmrl impute` name the modality. A modality whose error is above 1.0 or whose
coverage is outside 90 to 98 % without a warning is called out.

`CALMRL_BENCH_DATA=stamps,digits` measures a part; `collection` are the files of examples/make_collection.py, encoded by
`calmrl extract`, or the features in `CALMRL_BENCH_COLLECTION`.
"""

from __future__ import annotations

import os
import re
import runpy
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl.data import FeatureSet, open_features
from calmrl.data.hiding import hide
from calmrl.datasets import load_dataset
from calmrl.imputers import AutoImputer
from calmrl.latent.held_out import coverage_fault
from calmrl.workflows import extract
from calmrl.workflows.impute import imputation_warnings

DATA = ("digits", "collection", "stamps", "emoji")
RATE = 0.2
REACH = 1.959963984540054  # deviations on either side that hold 95 % of a normal distribution
MAKER = Path(__file__).parents[1] / "examples" / "make_collection.py"


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    asked = os.environ.get("CALMRL_BENCH_DATA")
    rows: list[dict[str, Any]] = []
    for name in asked.split(",") if asked else DATA:
        measured = _rows(name, features_of(name))
        for row in measured:
            print(f"  {row['case']}: {row['ratio']:.3f}, {row['note']}", flush=True)
        rows += measured
    return rows


def features_of(name: str) -> FeatureSet:
    """A bundled data set, or the collection of one's own."""
    if name != "collection":
        return load_dataset(name)
    if "CALMRL_BENCH_COLLECTION" in os.environ:
        return open_features(os.environ["CALMRL_BENCH_COLLECTION"])
    folder = Path(tempfile.mkdtemp())
    runpy.run_path(str(MAKER))["main"](folder / "collection")
    extract(folder / "collection", None, folder / "features")
    return open_features(folder / "features")


def _rows(name: str, features: FeatureSet) -> list[dict[str, Any]]:
    present = np.asarray(features.present)
    left = hide(present, RATE, np.random.default_rng(0))
    z = {m: np.where(left[:, [j]], values, np.nan) for j, (m, values) in enumerate(features.z.items())}
    start = time.process_time()
    imputer = AutoImputer().fit(z, left)
    imputed, std = imputer.impute(z, left, return_std=True)
    seconds = time.process_time() - start
    warnings = imputation_warnings(imputer.choice_)
    rows = []
    for j, m in enumerate(features.names):
        hidden, truth = present[:, j] & ~left[:, j], np.asarray(features.z[m], float)
        gap = imputed[m][hidden] - truth[hidden]
        error = float(np.square(gap).sum() / np.square(truth[hidden] - truth[present[:, j]].mean(axis=0)).sum())
        covered = 100 * float((np.abs(gap) <= REACH * std[m][hidden]).mean())
        named = [sentence for sentence in warnings if re.search(rf"\b{re.escape(m)}\b", sentence)]
        note = f"95 % intervals cover {covered:.1f} % of {int(hidden.sum())} blocks; {_verdict(error, covered, named)}"
        case = f"{name}: others -> {m}"
        rows.append({"case": case, "ratio": error, "target": "<= 1.0", "note": note, "ours_s": seconds})
    return rows


def _verdict(error: float, covered: float, warnings: list[str]) -> str:
    if warnings:
        return "calmrl impute warns: " + "; ".join(warnings)
    return "no warning" if error <= 1 and coverage_fault(covered) is None else "NO WARNING, BUT THERE SHOULD BE ONE"
