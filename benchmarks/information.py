"""How far incomplete rows can go: an aligner of incomplete rows, beside aligners of fewer rows that are complete.

The data of the study, three other seeds, fixed settings of the aligner, so that only the rows differ: those of the setting;
as many complete rows as have the same number of blocks; as many as have the same number of pairs of blocks, on average over
pairs of modalities; and all rows complete, the ideal.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from calmrl.aligner import Aligner
from calmrl.config import load
from calmrl.training.validate import retrieval_scores
from calmrl.workflows.compare.plan import open_rows
from calmrl.workflows.demo import KERNEL

SEEDS = tuple(range(int(os.environ.get("CALMRL_INFORMATION_SEEDS", "3"))))
PLACES = {
    ("stamps", "two-source"): {"prior": 300.0},
    ("stamps", "one-source"): {"prior": 300.0},
    ("emoji", "two-source"): {"prior": 300.0},
    ("emoji", "one-source"): {"prior": 300.0},
    ("digits", "half-missing"): {"prior": 300.0, "latent_dim": 64},
}


def rows_of(dataset: str, setting: str, seed: int) -> tuple[Any, Any]:
    """Training rows and test rows; the setting "" hides nothing."""
    config = load("study", [], kind="compare").only(dataset)
    opened = open_rows(config, setting, seed, None)
    return next(iter(opened.data.train.values())), opened.test


def fetch(rows: Any, chosen: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    z = rows.fetch(chosen, rows.present[chosen], 0)
    return {name: values.numpy() for name, values in z.items()}, rows.present[chosen]


def found(aligner: Aligner, test: Any) -> float:
    """R@1 over all directions."""
    z, present = fetch(test, np.arange(len(test)))
    embedded = {name: torch.from_numpy(np.asarray(aligner.embed({name: values}))) for name, values in z.items()}
    return retrieval_scores(embedded, torch.from_numpy(present))["R@1"]


def measure(dataset: str, setting: str, seed: int, settings: dict[str, Any]) -> dict[str, float]:
    """R@1 of each set of rows, and "rows: NAME" how many there are."""
    incomplete, test = rows_of(dataset, setting, seed)
    complete, _ = rows_of(dataset, "", seed)
    has = incomplete.present.astype(np.int64)
    pairs = (has.T @ has)[np.triu_indices(has.shape[1], 1)]
    order = np.random.default_rng(seed).permutation(len(complete))
    sets = {
        "incomplete": (incomplete, np.arange(len(incomplete))),
        "same blocks": (complete, order[: round(has.mean() * len(has))]),
        "same pairs": (complete, order[: round(pairs.mean())]),
        "ideal": (complete, order),
    }
    result = {}
    for name, (rows, chosen) in sets.items():
        aligner = Aligner(**{**KERNEL, **settings}, random_state=seed).fit(*fetch(rows, chosen))
        result[name] = found(aligner, test)
        result[f"rows: {name}"] = len(chosen)
    return result


def run() -> list[dict[str, Any]]:
    """R@1 of the incomplete rows by that of as many complete blocks."""
    results = []
    for (dataset, setting), settings in PLACES.items():
        seeds = [measure(dataset, setting, seed, settings) for seed in SEEDS]
        mean = {name: float(np.mean([one[name] for one in seeds])) for name in seeds[0]}
        names = [name for name in mean if not name.startswith("rows: ")]
        note = ", ".join(f"{name} {mean[name]:.1f} ({mean[f'rows: {name}']:.0f} rows)" for name in names)
        results.append(
            {
                "case": f"R@1 of incomplete rows by complete ones, {dataset} {setting}",
                "ratio": mean["incomplete"] / mean["same blocks"],
                "target": "none",
                "note": note,
            }
        )
    return results
