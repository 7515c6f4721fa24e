"""What the numbers say, in plain words; where the Gaussian model does not win is said as well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Row = dict[str, Any]
OURS = "gaussian"


def in_words(rows: Sequence[Row]) -> list[str]:
    """One sentence or two per dataset, best method first."""
    return [_sentence(dataset, by_method(rows, dataset)) for dataset in dict.fromkeys(row["dataset"] for row in rows)]


def by_method(rows: Sequence[Row], dataset: str) -> dict[str, np.ndarray]:
    """Method -> its values in the order of the seeds; the best mean first."""
    values: dict[str, list[float]] = {}
    for row in sorted((row for row in rows if row["dataset"] == dataset), key=lambda row: row["seed"]):
        values.setdefault(row["method"], []).append(row["value"])
    return {method: np.array(found) for method, found in sorted(values.items(), key=lambda item: np.mean(item[1]))}


def spread(values: np.ndarray) -> str:
    """± the standard deviation over the seeds; nothing can be said of a single one."""
    return f"± {values.std(ddof=1):.3f}" if len(values) > 1 else "one seed"


def _sentence(dataset: str, values: dict[str, np.ndarray]) -> str:
    best, *others = values
    removes = 100 * (1 - values[best].mean())
    said = f"On {dataset}, {best} is best: it removes {removes:.0f} % of the error that filling in the mean makes."
    ours = [method for method in values if method.startswith(OURS)]
    if not ours or not others:
        return said
    ours_best, rest = ours[0], [method for method in values if method not in ours]
    if not rest:
        return said
    rival = rest[0]
    seeds, wins = len(values[rival]), int((values[ours_best] < values[rival]).sum())
    everywhere = f"on all {seeds} seeds" if seeds > 1 else "on the one seed"
    if wins == seeds:
        return f"{said} {ours_best} is better than every other method ({rival} next) {everywhere}."
    if wins == 0:
        return f"{said} {ours_best} does not win here: {rival} is better {everywhere}."
    return f"{said} {ours_best} and {rival} are level: {ours_best} is better on {wins} of {seeds} seeds."
