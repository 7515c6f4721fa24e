"""Does `Aligner.expected` keep its word? Measured R@1 of test rows against its interval, per direction and seed.

The splits and holes are those of the study (`calmrl compare study`), and `world` with strong noise; everything is chosen by the
aligner, siblings share a fold. `ratio` is the share of directions and seeds whose measured R@1 lies inside the interval for a
gallery of as many items as the test rows have.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import torch

from calmrl import Aligner
from calmrl.config import load
from calmrl.data.features.feature_set import ROW, relevance_of
from calmrl.datasets import load_dataset
from calmrl.metrics import retrieval
from calmrl.workflows.compare.plan import open_rows

SEEDS = (0, 1, 2)
PLACES = (
    ("stamps", "two-source"),
    ("stamps", "one-source"),
    ("emoji", "two-source"),
    ("emoji", "one-source"),
    ("digits", "half-missing"),
)
BY_COLUMN = (("stamps", "two-source", "text"), ("digits", "half-missing", "labels"))  # every item with its value counts
Rows = tuple[dict[str, np.ndarray], np.ndarray]


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    rows = [_row(f"{name}, {setting}", [_of_study(name, setting, seed) for seed in SEEDS]) for name, setting in PLACES]
    rows += [
        _row(f"{name}, {setting}, by {by}", [_of_study(name, setting, seed, by) for seed in SEEDS])
        for name, setting, by in BY_COLUMN
    ]
    return [*rows, _row("world, noise 0.5, bend 0.6", [_of_world(seed) for seed in SEEDS])]


def _row(case: str, inside: list[list[bool]]) -> dict[str, Any]:
    flat = [each for one in inside for each in one]
    note = f"{sum(flat)} of {len(flat)} directions and seeds inside the interval"
    return {"case": case, "ratio": float(np.mean(flat)), "target": ">= 0.85", "note": note}


def _of_study(name: str, setting: str, seed: int, by: str = ROW) -> list[bool]:
    config = load("study", [], kind="compare").only(name)  # type: ignore[union-attr]
    rows = open_rows(config, setting, seed, None)
    train = next(iter(rows.data.train.values()))
    column = config.source.resplit.by
    siblings = None if column == "id" else list(rows.features.column(column)[train.home])
    relevant = relevance_of(rows.features, by)
    learned = None if relevant is None else list(rows.features.column(by)[train.home])
    aligner = Aligner(random_state=seed).fit(*_arrays(train), groups=siblings, relevant=learned)
    return _inside(aligner, *_arrays(rows.test), None if relevant is None else relevant[rows.test.home])


def _arrays(source: Any) -> Rows:
    values = source.fetch(np.arange(len(source)), source.present, 0)
    return {name: rows.numpy() for name, rows in values.items()}, source.present


def _of_world(seed: int) -> list[bool]:
    data = load_dataset("world", n=2000, private=8, noise=0.5, nonlinear=0.6, seed=seed)
    present = data.present.copy()
    test = np.arange(len(data)) % 4 == 0
    take = {
        part: ({name: z[rows] for name, z in data.z.items()}, present[rows])
        for part, rows in (("train", ~test), ("test", test))
    }
    return _inside(Aligner(random_state=seed).fit(*take["train"]), *take["test"])


def _inside(
    aligner: Aligner, z: dict[str, np.ndarray], present: np.ndarray, relevant: np.ndarray | None = None
) -> list[bool]:
    names = list(z)
    answers = []
    for a, b in permutations(range(len(names)), 2):
        both = present[:, a] & present[:, b]
        key = f"{names[a]}->{names[b]}"
        if key not in aligner.expected_ or both.sum() < 2:
            continue
        queries, gallery = (aligner.embed({names[j]: z[names[j]][both]}) for j in (a, b))
        ids = None if relevant is None else list(relevant[both])
        measured = retrieval(queries, gallery, ids, ids)["R@1"]
        expected = aligner.expected(int(both.sum()))[key]
        answers.append(bool(expected["low"] <= measured <= expected["high"]))
    return answers
