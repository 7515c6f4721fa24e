"""What users wait for, in this version and in an earlier one: `AutoImputer.fit` and `impute`, and `Aligner.fit`, in turn.

CALMRL_BENCH_BEFORE is the Python of an environment with the earlier version. Every fit has a process of its own, one thread;
`ours_s` and `theirs_s` are processor seconds, `ratio` is how many times faster this version is. Imputing: 40 % of the observed
blocks are hidden, data as in `imputation_auto` and masks that no setting was chosen on; the note has the errors (1.0 is the
column mean) and the coverage of 90 % intervals, earlier version first. Aligning: the rows as they are; of digits and `mfeat`,
which are complete, 30 % of the blocks are hidden.

CALMRL_BENCH_DATA (stamps, emoji, digits, mfeat), CALMRL_BENCH_PARTS (auto, aligner) and CALMRL_BENCH_MASKS choose a part, with
commas; CALMRL_BENCH_CELLS=FOLDER keeps what was measured and reads what is there. A name of the earlier version keeps its
results apart from those of another: CALMRL_BENCH_BEFORE=NAME=PATH.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.omics import kept

DATA = "stamps,emoji,digits,mfeat"
MASKS = "21,22,23"
FIT = """
import json, sys, time, warnings
import numpy as np, torch
from calmrl.data.hiding import hide
from calmrl.datasets import load_dataset

part, name, mask = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
warnings.simplefilter("ignore")
features = load_dataset(name)
z, present = features.z, np.asarray(features.present)
if name == "stamps" and part == "auto":
    rows = ~np.asarray(features.column("glyph"), dtype=bool)
    z, present = {m: z[m][rows] for m in ("image", "text", "speech")}, present[rows, :3]
if name in ("digits", "mfeat"):
    present = np.ones((len(present), len(z)), bool)
hidden = part == "auto" or name in ("digits", "mfeat")
left = hide(present, 0.4 if part == "auto" else 0.3, np.random.default_rng(mask)) if hidden else present
seen = {m: np.where(left[:, [j]], block, np.nan) for j, (m, block) in enumerate(z.items())}
start = time.process_time()
if part == "aligner":
    from calmrl import Aligner
    Aligner().fit(seen, left)
    print(json.dumps({"took": time.process_time() - start}))
else:
    from calmrl.imputers import AutoImputer
    filled, std = AutoImputer().fit(seen, left).impute(seen, left, return_std=True)
    took, wrong, total, inside = time.process_time() - start, 0.0, 0.0, []
    for j, (m, block) in enumerate(z.items()):
        at = present[:, j] & ~left[:, j]
        gap = filled[m][at] - block[at].astype(float)
        wrong += np.square(gap).sum()
        total += np.square(block[at] - block[present[:, j]].astype(float).mean(axis=0)).sum()
        inside.append((np.abs(gap) <= 1.6448536 * std[m][at]).ravel())
    print(json.dumps({"took": took, "error": wrong / total, "covered": float(np.concatenate(inside).mean())}))
"""


def run() -> Iterator[dict[str, Any]]:
    before = os.environ.get("CALMRL_BENCH_BEFORE", "")
    if not before:
        raise SystemExit("set CALMRL_BENCH_BEFORE to the Python of an environment with the earlier version")
    label, _, path = before.rpartition("=")
    for part in os.environ.get("CALMRL_BENCH_PARTS", "auto,aligner").split(","):
        for name in os.environ.get("CALMRL_BENCH_DATA", DATA).split(","):
            masks = os.environ.get("CALMRL_BENCH_MASKS", MASKS).split(",")
            masks = masks if part == "auto" or name in ("digits", "mfeat") else masks[:1]
            found = [
                [
                    kept(f"before {part} {name} {mask} {which}", partial(fit, python, part, name, mask))
                    for which, python in ((label or "earlier", path), ("present", sys.executable))
                ]
                for mask in masks
            ]
            yield row(part, name, found)


def fit(python: str, part: str, name: str, mask: str) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [python, "-c", FIT, part, name, mask]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"    {part} {name} {mask}: {measured}", flush=True)
    return measured


def row(part: str, name: str, found: list[list[dict[str, float]]]) -> dict[str, Any]:
    """The ratio is that of all masks together."""
    then, now = (sum(pair[which]["took"] for pair in found) / len(found) for which in (0, 1))
    note = f"{then:.1f} s, {now:.1f} s"
    if part == "auto":
        gaps = [after["error"] - before["error"] for before, after in found]
        note += "; errors " + ", ".join(f"{before['error']:.4f} {after['error']:.4f}" for before, after in found)
        note += f"; difference {statistics.mean(gaps):+.4f}"
        note += f" +- {statistics.stdev(gaps):.4f}" if len(gaps) > 1 else ""
        note += "; covered " + ", ".join(f"{b['covered']:.3f} {a['covered']:.3f}" for b, a in found)
    case = f"{'AutoImputer' if part == 'auto' else 'Aligner.fit'}, {name}"
    return {"case": case, "ours_s": now, "theirs_s": then, "ratio": then / now, "target": "none", "note": note}
