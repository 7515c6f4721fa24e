"""What a comparison found, in sentences; also where our methods show no difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calmrl.metrics.measures import TidyRow
from calmrl.metrics.significance import mean_interval
from calmrl.workflows.compare.rows import method_of

if TYPE_CHECKING:
    from calmrl.workflows.compare.collect import SettingTests

SURE = 0.05


Place = tuple[str, str]  # data set and setting


def average(
    rows: Sequence[TidyRow], place: Place, metric: str = "R@1", task: str = "average"
) -> dict[str, dict[int, float]]:
    """method -> seed -> value."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        if ((row["dataset"], row["setting"]), row["task"], row["metric"]) == (place, task, metric):
            values.setdefault(row["method"], {})[row["seed"]] = row["value"]
    return values


def in_words(
    places: Mapping[Place, str], rows: Sequence[TidyRow], tests: Mapping[str, SettingTests | None]
) -> list[str]:
    """Place by place: which method is best, how calmrl compares with the best others, and what its anchors do.

    `places` maps data set and setting to the name that `tests` and the sentences use.
    """
    sentences: list[str] = []
    for place, name in places.items():
        values = average(rows, place)
        means = {m: float(np.mean(list(v.values()))) for m, v in values.items() if " " not in m}
        real = {method: mean for method, mean in means.items() if not method_of(method).ideal}
        if not real:
            continue
        best = max(real, key=lambda method: real[method])
        interval = mean_interval(list(values[best].values()))
        spread = "" if interval.half is None else f" ± {interval.half:.1f}"
        ideal = [
            f" With nothing missing, {method} reaches {means[method]:.1f}."
            for method in means
            if method_of(method).ideal
        ]
        text = (
            f"{best} has the best mean: R@1 {real[best]:.1f}{spread} over all directions{_by_chance(rows, place)}."
            f"{''.join(ideal)}"
        )
        parts = (text, *_calmrl(tests[name], real), *_shift(rows, place))
        sentences += [f"{name}: {sentence}" for sentence in parts]
    return sentences


def _by_chance(rows: Sequence[TidyRow], place: Place) -> str:
    levels = [value for seeds in average(rows, place, "chance R@1").values() for value in seeds.values()]
    return f" (by chance {np.mean(levels):.1f})" if levels else ""


def _calmrl(tests: SettingTests | None, means: dict[str, float]) -> list[str]:
    """calmrl against the best methods without and with a latent model."""
    plain = None if tests is None else tests.plain
    sentences = _against(plain, means, "the best method without a latent model")
    if plain is None or tests is None or tests.against != plain.against:
        sentences += _against(tests, means, "the best of the methods that start from the latent model")
    return sentences


def _against(tests: SettingTests | None, means: dict[str, float], what: str) -> list[str]:
    if tests is None or "calmrl" not in tests.methods:
        return []
    gain, low, high, p = tests.methods["calmrl"]
    other = f"{tests.against} ({means[tests.against]:.1f}), {what}"
    bounds = f"{round(gain, 1) + 0.0:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"
    if p is not None and p < SURE:
        return [f"calmrl is {'better' if gain > 0 else 'worse'} than {other}: {bounds}."]
    return [f"calmrl is not distinguishable from {other}: {bounds}; no difference shown."]


def _shift(rows: Sequence[TidyRow], place: Place) -> list[str]:
    shifts = [average(rows, place, "anchor_shift", task) for task in ("observed", "calibrated")]
    name = next(
        (name for name in shifts[1] if method_of(name).ours and method_of(name).latent and name in shifts[0]), None
    )
    if name is None:
        return []
    before, after = (shift[name] for shift in shifts)
    b, a = (float(np.mean(list(v.values()))) for v in (before, after))
    verb = "brings anchors closer to" if a < b else "moves anchors away from"
    closer = sum(after[seed] < before[seed] for seed in before)
    return [
        f"imputing what test items lack {verb} those of complete items (distance {b:.3f} to {a:.3f} with {name}; closer "
        f"in {closer} of {len(before)} seeds)."
    ]
