"""Comparisons of a second: a small world, and what all configs on it have in common."""

from __future__ import annotations

from typing import Any

WIDTHS = {"m0": 8, "m1": 6, "m2": 5}
SMALL = {"kind": "compare", "steps": 4, "batch_size": 32, "width": 4, "workers": 1}
PAIRS = {"kind": "source", "rate": 0.6, "groups": [["m0", "m1"], ["m1", "m2"]]}


def world_source(n: int, rate: float = 0.0, seed: int = 1, widths: dict[str, int] = WIDTHS) -> dict[str, Any]:
    """A generated data set, split by item."""
    options = {"n": n, "widths": dict(widths), "rate": rate, "seed": seed}
    return {"dataset": "world", "options": options, "resplit": {}}
