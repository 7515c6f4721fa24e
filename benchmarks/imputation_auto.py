"""Imputation with everything on auto: 40 % of the observed blocks hidden, every row keeps one, three masks.

`ratio` is the normalised error of the hidden blocks (squared error / squared deviation from the column mean), the mean
over masks; `ours_s` processor seconds of fit and impute, one thread. Data: `synth`, `digits`, `mfeat` (all complete) and
`stamps` (image, text and speech of the 785 items that are not letters or digits, as `load_dataset("stamps")` gives
them; blocks that are missing by nature stay missing and are not scored).
Every imputer at its defaults is run beside `auto` on the first mask.
`CALMRL_BENCH_DATA=stamps,digits` restricts the data.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from typing import Any

import numpy as np
import torch

from benchmarks.latent_quality import complete
from calmrl import GaussianImputer
from calmrl.data.hiding import hide
from calmrl.datasets import load_dataset
from calmrl.imputers import IMPUTERS

MASKS = (1, 2, 3)
TARGETS = {"stamps": 0.922, "digits": 0.65, "mfeat": 0.33, "synth": 0.583}
LATENT_TARGETS = {"stamps": 0.93}
REACH = 1.6448536269514722  # deviations on either side that hold 90 % of a normal distribution


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name in os.environ.get("CALMRL_BENCH_DATA", ",".join(TARGETS)).split(","):
        z, present = data(name)
        rows.append(_row(name, "auto", [measure(IMPUTERS["auto"](), z, present, mask) for mask in MASKS]))
        latent = [measure(GaussianImputer("auto", "auto", "auto"), z, present, mask) for mask in MASKS]
        rows.append(_row(name, "gaussian, all on auto", latent))
        rows.append(_row(name, "kernel", [measure(IMPUTERS["kernel"](), z, present, mask) for mask in MASKS]))
        for other in IMPUTERS:
            if other not in ("auto", "kernel"):
                rows.append(_row(name, other, [measure(IMPUTERS[other](), z, present, MASKS[0])]))
    return rows


def data(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(z, present) before anything is hidden."""
    if name == "stamps":
        features = load_dataset("stamps")
        rows = ~np.asarray(features.column("glyph"), dtype=bool)
        return {m: features.z[m][rows] for m in ("image", "text", "speech")}, features.present[rows, :3]
    z = complete(name)
    return z, np.ones((len(next(iter(z.values()))), len(z)), bool)


def measure(imputer: Any, z: dict[str, np.ndarray], present: np.ndarray, mask: int) -> dict[str, Any]:
    """Normalised error, coverage of 90 % intervals and processor seconds for one mask."""
    left = hide(present, 0.4, np.random.default_rng(mask))
    hidden = present & ~left
    holes = {name: np.where(left[:, [j]], block, np.nan) for j, (name, block) in enumerate(z.items())}
    start = time.process_time()
    filled, std = imputer.fit(holes, left).impute(holes, left, return_std=True)
    took = time.process_time() - start
    wrong = total = 0.0
    inside = []
    for j, (name, block) in enumerate(z.items()):
        truth = block[hidden[:, j]].astype(float)
        middle = block[present[:, j]].astype(float).mean(axis=0)
        gap = filled[name][hidden[:, j]] - truth
        wrong += float(np.square(gap).sum())
        total += float(np.square(truth - middle).sum())
        inside.append((np.abs(gap) <= REACH * std[name][hidden[:, j]]).ravel())
    choice = getattr(imputer, "choice_", {}).get("weights", {})
    return {"error": wrong / total, "covered": float(np.concatenate(inside).mean()), "took": took, "choice": choice}


def _row(data_name: str, imputer: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    errors = [one["error"] for one in found]
    target = {"auto": TARGETS, "gaussian, all on auto": LATENT_TARGETS}.get(imputer, {}).get(data_name)
    covered = ", ".join(f"{100 * one['covered']:.1f}" for one in found)
    note = f"per mask {', '.join(f'{error:.4f}' for error in errors)}; 90 % intervals cover {covered} %"
    if imputer == "auto":
        note += f"; kept {' + '.join(next(iter(found[0]['choice'].values())))}"
    return {
        "case": f"{data_name}: {imputer}",
        "ours_s": statistics.mean(one["took"] for one in found),
        "theirs_s": None,
        "ratio": statistics.mean(errors),
        "target": "none" if target is None else f"<= {target}",
        "note": f"{note}; {statistics.mean(one['took'] for one in found):.0f} s",
    }
