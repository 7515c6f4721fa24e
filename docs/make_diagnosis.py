"""Does the diagnosis predict what imputing brings? Draw docs/assets/diagnosis-*.svg from 48 generated settings.

Each setting is a `world` with its own number of modalities, shared signal, private signal, noise, bend, kind and rate of
missingness. `diagnose` sees incomplete rows and nothing else. What imputing brings is then measured on 4,000 further
rows of the same world, where the truth is known:

- accuracy: a linear classifier is trained and tested on incomplete rows, imputed by the latent model or by the mean;
- anchor shift: how much closer the anchors of incomplete rows come to those of the complete rows.

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
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import RidgeClassifierCV

from calmrl import GaussianImputer
from calmrl.anchors import anchor
from calmrl.datasets.world import World, world
from calmrl.report.figures import Panel, draw, finish, legend_below, points, standalone, styled
from calmrl.report.style import style_of
from calmrl.workflows import diagnose
from calmrl.workflows.diagnose.predictable import in_one_space

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
    """What imputing brings on the rows after the first n, by models fitted on the first n."""
    z = {name: np.asarray(array, dtype=np.float32) for name, array in made.z.items()}
    truth = {name: np.asarray(array, dtype=np.float32) for name, array in made.truth.z.items()}
    first = {name: array[:n] for name, array in z.items()}
    present, seen = made.present, made.present[:n]
    assert made.labels is not None
    imputed = GaussianImputer("auto", random_state=0).fit(first, seen).transform(z, present)
    plain = accuracy(z, present, made.labels, n)
    calibrated = accuracy(imputed, present, made.labels, n)

    aligner = GaussianImputer("auto", criterion="retrieval", random_state=0).fit(first, seen)
    unit = in_one_space(aligner, truth)
    observed = {name: np.where(present[:, [j]], array, 0.0) for j, (name, array) in enumerate(unit.items())}
    imputer = GaussianImputer("auto", random_state=0).fit({name: array[:n] for name, array in observed.items()}, seen)
    whole = np.ones_like(present)
    right = anchor(unit, whole)[n:]
    before = np.linalg.norm(right - anchor(observed, present)[n:], axis=1).mean()
    after = np.linalg.norm(right - anchor(imputer.transform(observed, present), whole)[n:], axis=1).mean()
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
    for j, array in enumerate(z.values()):
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
        "half": "design" if seed in DESIGN else "report",
        "expected": {"accuracy": found.gain, "shift": found.anchor_gain},
        "missing": found.missing,
        "back": found.back,
        "measured": measure(made, n),
    }


def correlation(rows: list[dict[str, Any]], half: str, what: str) -> tuple[float, int]:
    """Spearman's rank correlation between expected and measured gain, and the number of settings."""
    some = [row for row in rows if row["half"] == half]
    found = spearmanr([row["expected"][what] for row in some], [row["measured"][what] for row in some])
    return float(found.statistic), len(some)


@styled
def drawn(rows: list[dict[str, Any]], what: str, x: str, y: str, scale: float) -> Panel:
    """Expected against measured gain, a mark per setting."""
    figure, (axes,) = draw(3.0)
    handles = []
    for half, style in (("design", style_of("mean gain")), ("report", style_of("gaussian"))):
        some = [row for row in rows if row["half"] == half]
        value, n = correlation(rows, half, what)
        points(
            axes,
            [scale * row["expected"][what] for row in some],
            [row["measured"][what] for row in some],
            style,
            label=f"{half} half: rank correlation {value:.2f}, n = {n}",
        )
        handles.append(axes.lines[-1])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    legend_below(figure, handles, [str(handle.get_label()) for handle in handles])
    alt = "; ".join(f"{half}: {correlation(rows, half, what)[0]:.2f}" for half in ("design", "report"))
    return finish(figure, f"diagnosis-{what}", f"Expected against measured gain, rank correlation {alt}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "assets", help="directory for the figures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", ConvergenceWarning)
    rows = []
    for seed in (*DESIGN, *REPORT):
        rows.append(run(seed))
        print(f"setting {seed}: expected {rows[-1]['expected']}, measured {rows[-1]['measured']}", flush=True)
    (out / "diagnosis-gain.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    axes = {
        "accuracy": ("expected gain (% of the variance of complete data)", "measured: accuracy gained (points)", 100.0),
        "shift": ("expected fall of the anchor shift", "measured: fall of the anchor shift", 1.0),
    }
    for what, (x, y, scale) in axes.items():
        (out / f"diagnosis-{what}.svg").write_text(standalone(drawn(rows, what, x, y, scale)), encoding="utf-8")
        for half in ("design", "report"):
            value, n = correlation(rows, half, what)
            print(f"{what}, {half} half: Spearman {value:.3f}, n = {n}")


if __name__ == "__main__":
    main()
