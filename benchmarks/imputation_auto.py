"""Every imputer on every data set: 40 % of the observed blocks hidden, every row keeps one, three masks.

`ratio` is the normalised error of the hidden blocks (squared error / squared deviation from the column mean), the mean
over masks; `ours_s` processor seconds of fit and impute, one thread. Data: `synth`, `digits`, `mfeat` (all complete),
`stamps` (image, text and speech of the 785 items that are not letters or digits, as `load_dataset("stamps")` gives
them) and, where asked for, `emoji` and `characters` (2,000 of them); blocks that are missing by nature stay missing and
are not scored. Imputers are at their defaults; `gaussian auto` is the latent model with latents, components and noise on
"auto", `auto without race` tries every candidate to the end.

Hours in all, so it can run in parts and go on after an interruption:

- `CALMRL_BENCH_DATA=stamps,digits`, `CALMRL_BENCH_IMPUTERS=auto,kernel`, `CALMRL_BENCH_MASKS=1,2` restrict it;
- `CALMRL_BENCH_CELLS=FOLDER` keeps the result of every data set, imputer and mask in a file of its own, and reads those
  that are there instead of measuring them again. Use a new folder for a new version of the code.
"""

from __future__ import annotations

import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.latent_quality import complete
from calmrl import GaussianImputer
from calmrl._support.output import new_file
from calmrl.data.hiding import hide
from calmrl.datasets import load_dataset
from calmrl.imputers import IMPUTERS, AutoImputer

MASKS = ("1", "2", "3")
TARGETS = {"stamps": 0.922, "digits": 0.65, "mfeat": 0.33, "synth": 0.583}  # of `auto`
LATENT_TARGETS = {"stamps": 0.93}  # of `gaussian auto`
REACH = 1.6448536269514722  # deviations on either side that hold 90 % of a normal distribution
CHARACTERS = 2000  # rows
Cell = dict[str, Any]


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    makers = imputers()
    masks = [int(mask) for mask in _asked("MASKS", MASKS)]
    rows = []
    for name in _asked("DATA", TARGETS):
        values = data(name)
        cells = {
            imputer: [cell(name, imputer, makers[imputer], values, mask) for mask in masks]
            for imputer in _asked("IMPUTERS", makers)
        }
        rows += [_row(name, imputer, measured, cells.get("auto")) for imputer, measured in cells.items()]
    return rows


def imputers() -> dict[str, Callable[[], Any]]:
    """`auto` first, for the ratios of seconds."""
    makers: dict[str, Callable[[], Any]] = {name: IMPUTERS[name] for name in IMPUTERS}
    without_race = {"auto without race": lambda: AutoImputer(race=False)}
    return {**makers, **without_race, "gaussian auto": lambda: GaussianImputer("auto", "auto", "auto")}


def _asked(variable: str, every: Any) -> list[str]:
    asked = os.environ.get(f"CALMRL_BENCH_{variable}", "")
    return asked.split(",") if asked else list(every)


def data(name: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(z, present) before anything is hidden."""
    if name == "stamps":
        features = load_dataset("stamps")
        rows = ~np.asarray(features.column("glyph"), dtype=bool)
        return {m: features.z[m][rows] for m in ("image", "text", "speech")}, features.present[rows, :3]
    if name in ("characters", "emoji"):
        features = load_dataset(name, **({"rows": CHARACTERS} if name == "characters" else {}))
        return features.z, np.asarray(features.present)
    here = name == "mfeat" and "CALMRL_MFEAT" in os.environ
    z = load_dataset("mfeat").z if here else complete(name)
    return z, np.ones((len(next(iter(z.values()))), len(z)), bool)


def cell(
    name: str,
    imputer: str,
    make: Callable[[], Any],
    values: tuple[dict[str, np.ndarray], np.ndarray],
    mask: int,
) -> Cell:
    """What was measured for one data set, imputer and mask; from its file if there is one."""
    folder = os.environ.get("CALMRL_BENCH_CELLS")
    path = Path(folder or ".") / f"{name}-{imputer.replace(' ', '-')}-{mask}.json"
    if folder and path.exists():
        measured: Cell = json.loads(path.read_text())
        return measured
    measured = measure(make(), *values, mask)
    print(f"  {name}, {imputer}, mask {mask}: {measured['error']:.4f}, {100 * measured['covered']:.1f} %", flush=True)
    if folder:
        with new_file(path) as draft:
            draft.write_text(json.dumps(measured, indent=2))
    return measured


def measure(imputer: Any, z: dict[str, np.ndarray], present: np.ndarray, mask: int) -> Cell:
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
    kept = list(imputer.models_) if hasattr(imputer, "choice_") and isinstance(imputer.models_, dict) else []
    return {"error": wrong / total, "covered": float(np.concatenate(inside).mean()), "took": took, "kept": kept}


def _row(name: str, imputer: str, measured: list[Cell], auto: list[Cell] | None) -> dict[str, Any]:
    errors = [one["error"] for one in measured]
    seconds = statistics.mean(one["took"] for one in measured)
    target = {"auto": TARGETS, "gaussian auto": LATENT_TARGETS}.get(imputer, {}).get(name)
    covered = ", ".join(f"{100 * one['covered']:.1f}" for one in measured)
    note = (
        f"per mask {', '.join(f'{error:.4f}' for error in errors)}; 90 % intervals cover {covered} %; {seconds:.0f} s"
    )
    if auto:
        note += f", {seconds / statistics.mean(one['took'] for one in auto):.2f} of auto"
    if measured[0]["kept"]:
        note += f"; kept on the first mask {' + '.join(measured[0]['kept'])}"
    return {
        "case": f"{name}: {imputer}",
        "ours_s": seconds,
        "theirs_s": None,
        "ratio": statistics.mean(errors),
        "target": "none" if target is None else f"<= {target}",
        "note": note,
    }
