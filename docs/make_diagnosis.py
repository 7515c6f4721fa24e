"""Does the diagnosis predict what filling in brings? Draw docs/assets/diagnosis-gain.svg from 48 generated settings.

Each setting is a `world` with its own number of modalities, shared signal, private signal, noise, bend, kind and rate of
missingness. `diagnose` sees rows with holes and nothing else. What filling in brings is then measured on 4,000 further
rows of the same world, where the truth is known:

- accuracy: a linear classifier is trained and tested on rows with holes, filled by the latent model or by the mean;
- anchor shift: how much nearer the anchors of rows with holes come to those of the complete rows.

The first half of the settings served to choose what is called the expected gain; the second half tests the choice.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import RidgeClassifierCV

from calmrl import GaussianImputer
from calmrl.anchors import anchor
from calmrl.datasets.world import World, world
from calmrl.diagnose import diagnose
from calmrl.diagnose.models import in_one_space

NAMES = ("image", "text", "audio", "depth")
DESIGN, REPORT = range(24), range(100, 124)
TEST_ROWS = 4000


def setting(seed: int) -> dict[str, Any]:
    """The options of one world, drawn at random."""
    rng = np.random.default_rng([7, seed])
    k = int(rng.integers(2, 5))
    shared = int(rng.choice([2, 4, 8, 16, 24]))
    noise = np.full(k, 10 ** rng.uniform(-0.7, 0.6)) if rng.random() < 0.5 else 10 ** rng.uniform(-0.7, 0.6, size=k)
    kind = str(rng.choice(["mcar", "one", "source"]))
    options: dict[str, Any] = {
        "n": int(rng.choice([600, 1200, 2400])),
        "widths": {name: int(rng.choice([16, 32, 64])) for name in NAMES[:k]},
        "shared": shared,
        "private": round(shared * float(rng.choice([0, 0.5, 1, 3]))),
        "noise": [round(float(value), 2) for value in noise],
        "nonlinear": float(rng.choice([0.0, 0.3, 0.6])),
        "kind": kind,
        "rate": round(float(rng.uniform(0.1, 0.9)), 2),
        "seed": seed,
    }
    if kind == "mcar":
        options["rate"] = round(float(rng.uniform(0.05, 0.45 if k == 2 else 0.6)), 2)
    if kind == "source":
        options["groups"] = [(0,), *((j, k - 1) for j in range(k - 1))]
        if rng.random() < 0.5:
            options["groups"] = [tuple(j for j in range(k) if j != left) for left in range(k)]
    return options


def measure(made: World, n: int) -> dict[str, float]:
    """What filling in brings on the rows after the first n, by models fitted on the first n."""
    z = {name: np.asarray(array, dtype=np.float32) for name, array in made.z.items()}
    truth = {name: np.asarray(array, dtype=np.float32) for name, array in made.truth.z.items()}
    first = {name: array[:n] for name, array in z.items()}
    present, seen = made.present, made.present[:n]
    assert made.labels is not None
    filled = GaussianImputer("auto", random_state=0).fit(first, seen).transform(z, present)
    plain = accuracy(z, present, made.labels, n)
    calibrated = accuracy(filled, present, made.labels, n)

    aligner = GaussianImputer("auto", criterion="retrieval", random_state=0).fit(first, seen)
    unit = in_one_space(aligner, truth)
    holes = {name: np.where(present[:, [j]], array, 0.0) for j, (name, array) in enumerate(unit.items())}
    filler = GaussianImputer("auto", random_state=0).fit({name: array[:n] for name, array in holes.items()}, seen)
    whole = np.ones_like(present)
    right = anchor(unit, whole)[n:]
    before = np.linalg.norm(right - anchor(holes, present)[n:], axis=1).mean()
    after = np.linalg.norm(right - anchor(filler.transform(holes, present), whole)[n:], axis=1).mean()
    return {
        "accuracy": calibrated - plain,
        "accuracy without": plain,
        "accuracy complete": accuracy(truth, whole, made.labels, n),
        "shift": float(before - after),
        "shift before": float(before),
    }


def accuracy(z: dict[str, np.ndarray], present: np.ndarray, labels: np.ndarray, n: int) -> float:
    """Percent right on the rows after the first n; NaN blocks are put at the mean."""
    parts = []
    for j, (name, array) in enumerate(z.items()):
        known = array[:n][present[:n, j]]
        parts.append(np.nan_to_num((array - known.mean(axis=0)) / known.std()))
    x = np.hstack(parts)
    model = RidgeClassifierCV(alphas=10.0 ** np.arange(0, 5)).fit(x[:n], labels[:n])
    return 100 * float(model.score(x[n:], labels[n:]))


def run(seed: int) -> dict[str, Any]:
    """One setting: what the diagnosis says and what was measured."""
    options = setting(seed)
    n = options.pop("n")
    made = world(n + TEST_ROWS, **options)
    rows = np.arange(n)
    found = diagnose(made.select(rows))
    assert found.shift is not None
    return {
        "setting": {"n": n, **options},
        "diagnosis": {
            "gain": found.gain,
            "back": found.back,
            "missing": found.missing,
            "incomplete": found.incomplete,
            "before": found.shift.before,
            "after": found.shift.after,
        },
        "measured": measure(made, n),
    }
