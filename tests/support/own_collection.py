"""A collection as people have it: sounds, pictures and words, a third of the blocks missing, few complete test rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calmrl.data.features.writer import write_features

WIDTHS = {"sound": 7, "picture": 9, "words": 6}
ROWS, COMPLETE_TEST = 551, 7


def own_collection(path: Path, *, split: bool = True) -> Path:
    """551 rows, 37 % of the blocks missing, 7 complete test rows; captions and labels repeat, one label is missing."""
    rng = np.random.default_rng(5)
    shared = rng.normal(size=(ROWS, 4))
    z = {
        name: (shared @ rng.normal(size=(4, width)) + 0.3 * rng.normal(size=(ROWS, width))).astype(np.float32)
        for name, width in WIDTHS.items()
    }
    part = np.array(["train"] * 400 + ["val"] * 60 + ["test"] * 91, dtype=object)
    present = np.zeros((ROWS, 3), dtype=bool)
    pairs = np.array([[True, True, False], [True, False, True], [False, True, True]])
    present[:] = pairs[rng.integers(0, 3, ROWS)]
    present[rng.choice(400, 60, replace=False)] = True
    single = rng.choice(np.arange(ROWS), 115, replace=False)
    present[single] = np.eye(3, dtype=bool)[rng.integers(0, 3, len(single))]
    test = np.flatnonzero(part == "test")
    present[test[present[test].all(axis=1)]] = pairs[0]
    present[test[:COMPLETE_TEST]] = True
    values = {
        name: np.where(present[:, [j]], array, np.nan).astype(np.float32) for j, (name, array) in enumerate(z.items())
    }
    write_features(
        path,
        values,
        present,
        ids=[f"item {i}" for i in range(ROWS)],
        split=list(part) if split else None,
        labels=[str(i % 5) for i in range(ROWS)],
        text=[f"caption {i % 37}" for i in range(ROWS)],
    )
    return path
