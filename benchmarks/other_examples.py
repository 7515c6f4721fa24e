"""The examples of two other libraries with our imputers in place of theirs, on their data and by their measure.

iMML: its tutorial "Impute modality- and feature-wise incomplete multi-modal data". 50 rows of `make_classification` in two
modalities of ten columns; its `Amputer` hides one modality of 10 to 70 % of the rows; each column is standardised; mean
absolute error of what is hidden, in the units of the data. The tutorial also hides single values;
that part is left out.

mofapy2: the three views (100 rows, 500 columns each) that it ships for its own runs, 20 % of the rows of each view hidden, as
its `mask_samples` does by default; options as in its notebook (10 factors). Error of the hidden blocks, 1.0 = the column mean.

`ratio` is their error over ours: above 1 ours is smaller. Every case has ten draws of what is hidden; intervals are 95 % over
draws. Both libraries have one draw of data, so that the intervals say nothing about other data.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.latent_speed import normalised_error
from calmrl.imputers import AutoImputer, GaussianImputer, GFAImputer, MeanImputer, RidgeImputer

DRAWS = range(10)
RATES = (0.1, 0.3, 0.5, 0.7)
FACTORS = {"imml": 4, "mofapy2": 10}
Rows = dict[str, np.ndarray]
Impute = Callable[[Rows], Rows]  # NaN where a block is hidden -> the same without NaN


def run() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    yield from imml_tutorial()
    yield from mofapy2_views()


def ours(library: str, seed: int) -> dict[str, Impute]:
    """Our imputers, with as many latents as the example and with everything chosen by themselves."""
    slow = (
        {} if library == "mofapy2" else {"AutoImputer": AutoImputer(random_state=seed).fit_transform}
    )  # minutes there
    return {
        "GaussianImputer, same latents": GaussianImputer(FACTORS[library], random_state=seed).fit_transform,
        "GFAImputer, same latents": GFAImputer(FACTORS[library], random_state=seed).fit_transform,
        "GaussianImputer auto": GaussianImputer("auto", random_state=seed).fit_transform,
        **slow,
        "RidgeImputer": RidgeImputer().fit_transform,
        "MeanImputer": MeanImputer().fit_transform,
    }


# ---- iMML


def imml_tutorial() -> Iterator[dict[str, Any]]:
    import pandas as pd
    from imml.ampute import Amputer
    from sklearn.datasets import make_classification

    values, _ = make_classification(n_samples=50, random_state=42, n_clusters_per_class=1, n_classes=3)
    truth = {"A": values[:, :10], "B": values[:, 10:]}
    for rate in RATES:
        errors: dict[str, list[float]] = {}
        seconds: dict[str, float] = {}
        for seed in DRAWS:
            frames = [pd.DataFrame(block) for block in truth.values()]
            hidden = Amputer(p=rate, random_state=seed).fit_transform(frames)
            holes = dict(zip(truth, (np.asarray(frame, dtype=float) for frame in hidden), strict=True))
            for name, impute in {"MOFAImputer": _imml_imputer(seed), **ours("imml", seed)}.items():
                imputed, took = _timed(_standardised(impute), holes)
                seconds[name] = seconds.get(name, 0.0) + took
                errors.setdefault(name, []).append(_absolute_error(imputed, truth, holes))
        yield from _rows(f"iMML tutorial, {rate:.0%} of rows", "MOFAImputer", errors, seconds)


def _imml_imputer(seed: int) -> Impute:
    from imml.impute import MOFAImputer

    def impute(holes: Rows) -> Rows:
        blocks = MOFAImputer(n_components=FACTORS["imml"], random_state=seed).fit_transform(list(holes.values()))
        return dict(zip(holes, (np.asarray(block) for block in blocks), strict=True))

    return impute


def _standardised(impute: Impute) -> Impute:
    """Scale columns as the tutorial does, impute, and go back to the units of the data."""

    def inner(holes: Rows) -> Rows:
        mean = {name: np.nanmean(block, axis=0) for name, block in holes.items()}
        scale = {name: np.nanstd(block, axis=0) for name, block in holes.items()}
        imputed = impute({name: (block - mean[name]) / scale[name] for name, block in holes.items()})
        return {name: np.asarray(block) * scale[name] + mean[name] for name, block in imputed.items()}

    return inner


def _absolute_error(imputed: Rows, truth: Rows, holes: Rows) -> float:
    """Mean over modalities of the mean absolute error of hidden values."""
    masks = {name: np.isnan(block) for name, block in holes.items()}
    return float(np.mean([np.abs(imputed[m] - truth[m])[mask].mean() for m, mask in masks.items() if mask.any()]))


# ---- mofapy2


def mofapy2_views() -> Iterator[dict[str, Any]]:
    truth = _shipped_views()
    count = len(next(iter(truth.values())))
    errors: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    for seed in DRAWS:
        rng = np.random.default_rng(seed)
        present = np.ones((count, len(truth)), dtype=bool)
        for j in range(len(truth)):
            present[rng.choice(count, count // 5, replace=False), j] = False
        present[~present.any(axis=1)] = True  # a row with nothing left is outside of the example
        holes = {name: np.where(present[:, [j]], block, np.nan) for j, (name, block) in enumerate(truth.items())}
        for name, impute in {"mofapy2": _with_mofapy2, **ours("mofapy2", seed)}.items():
            imputed, took = _timed(impute, holes)
            seconds[name] = seconds.get(name, 0.0) + took
            errors.setdefault(name, []).append(normalised_error(imputed, truth, ~present))
    yield from _rows("mofapy2 views, 20% of rows", "mofapy2", errors, seconds)


def _shipped_views() -> Rows:
    spec = importlib.util.find_spec("mofapy2")
    if spec is None or spec.origin is None:
        raise SystemExit('mofapy2 is not installed; pip install "calmrl[bench]"')
    folder = Path(spec.origin).parent / "run" / "test_data"
    return {f"view{j}": np.loadtxt(folder / f"view_{j}.txt") for j in range(3)}


def _with_mofapy2(holes: Rows) -> Rows:
    """Factors times weights, with the column means, which the model takes off and its own `impute` leaves out."""
    from mofapy2.run.entry_point import entry_point

    with contextlib.redirect_stdout(io.StringIO()):
        model = entry_point()
        model.set_data_options(scale_views=False)
        model.set_data_matrix([[block] for block in holes.values()], likelihoods=["gaussian"] * len(holes))
        model.set_model_options(factors=FACTORS["mofapy2"], spikeslab_weights=True, ard_weights=True)
        model.set_train_options(convergence_mode="fast", dropR2=0.001, seed=1, quiet=True)
        model.build()
        model.run()
    factors = model.model.nodes["Z"].getExpectation()
    weights = [node.getExpectation() for node in model.model.nodes["W"].getNodes()]
    return {
        name: factors @ weight.T + np.nanmean(block, axis=0)
        for (name, block), weight in zip(holes.items(), weights, strict=True)
    }


# ---- both


def _timed(impute: Impute, holes: Rows) -> tuple[Rows, float]:
    start = time.process_time()
    imputed = impute(holes)
    return imputed, time.process_time() - start


def _rows(
    case: str, theirs: str, errors: dict[str, list[float]], seconds: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """A row per imputer of ours, beside theirs on the same draws."""
    base = np.array(errors[theirs])
    for name in errors:
        if name == theirs:
            continue
        own = np.array(errors[name])
        gain = base - own
        half = 1.96 * gain.std(ddof=1) / np.sqrt(len(gain))
        yield {
            "case": f"{case}: {name}",
            "ours_s": seconds[name],
            "theirs_s": seconds[theirs],
            "ratio": float(base.mean() / own.mean()),
            "target": ">= 1",
            "note": f"error {own.mean():.4f}, {theirs} {base.mean():.4f}, difference {gain.mean():+.4f} +- {half:.4f}; "
            f"{seconds[name]:.1f} s and {seconds[theirs]:.1f} s for {len(gain)} draws",
        }
