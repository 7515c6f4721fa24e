"""The answer in sentences. They follow the numbers: who is best, by how much, and whether that is more than the spread.

Two methods are compared on the seeds they share: d_s = a_s - b_s, mean(d) ± t * sd(d) / sqrt(s). A difference is clear
when this interval does not hold 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from calmrl.report.numbers import Estimate, describe, fixed, half_width, plural
from calmrl.report.results import Results, Row, group
from calmrl.report.tables import ranked

PREFERRED = ("R@1", "accuracy", "nmse", "mse", "anchor_shift")
SAID = 3  # settings with sentences of their own


@dataclass(frozen=True)
class Difference:
    """How much better a is than b (positive: better), on how many common seeds."""

    mean: float
    half: float | None
    seeds: int

    @property
    def clear(self) -> bool:
        return self.half is not None and abs(self.mean) > self.half


def headline(rows: Sequence[Row]) -> tuple[str, str]:
    """The task and metric that the first screen shows: average R@1 if there is one, else the most frequent good choice."""
    found = list(dict.fromkeys((row.task, row.metric) for row in rows))
    if ("average", "R@1") in found:
        return "average", "R@1"
    for metric in PREFERRED:
        tasks = [task for task, name in found if name == metric]
        if tasks:
            return max(tasks, key=lambda task: sum((row.task, row.metric) == (task, metric) for row in rows)), metric
    return found[0]


def headline_rows(results: Results, *, rated: bool | None = None) -> list[Row]:
    """The rows of the headline; `rated` picks settings that are (or are not) steps of a missing rate.

    Where every setting is such a step, none is: they are the settings.
    """
    rows = [row for row in results.rows if (row.task, row.metric) == headline(results.rows)]
    steps = {row.place for row in rows if row.rate is not None}
    if steps == {row.place for row in rows}:
        steps = set()
    return rows if rated is None else [row for row in rows if (row.place in steps) is rated]


def name_of(task: str, metric: str) -> str:
    """average R@1, imputation nmse."""
    return f"{task.replace('->', ' → ')} {metric}"


def verdict(results: Results) -> list[str]:
    """The words of the results where they have some, otherwise sentences made from the headline numbers."""
    given = [source.meta.words for source in results.sources]
    if len(given) == 1 and given[0]:
        return given[0]
    task, metric = headline(results.rows)
    said = []
    for rated in (False, True):
        rows = headline_rows(results, rated=rated)
        places = {place: [row for row in rows if row.place == place] for place in results.places(rows)}
        if len(places) > SAID:
            said.append(
                _summary(results, list(places.values()), task, metric, "missing rates" if rated else "settings")
            )
        else:
            said += [_place(results, results.place_name(p), here, task, metric) for p, here in places.items()]
    return said


def _place(results: Results, place: str, rows: Sequence[Row], task: str, metric: str) -> str:
    found: dict[str, Estimate] = group(rows, lambda row: row.method)
    order = ranked({m: e for m, e in found.items() if not results.ideal(m)}, metric)
    ideal = ranked({m: e for m, e in found.items() if results.ideal(m)}, metric)
    if not order:
        return f"{place}: {_with(ideal[0], found, metric)} with nothing missing."
    best = order[0]
    said = f"{place}: {best} is best, {name_of(task, metric)} {_value(found[best], metric)}"
    said += f" ({found[best].items} items, {plural(found[best].seeds, 'seed')})."
    pair = _pair(results, order)
    if pair:
        said += " " + _compared(rows, pair, metric)
    elif len(order) > 1:
        said += f" Next is {_with(order[1], found, metric)}."
    if ideal:
        said += f" With nothing missing, {_with(ideal[0], found, metric)}."
    return said


def _compared(rows: Sequence[Row], pair: tuple[str, str], metric: str) -> str:
    """The best of ours against the best of the others."""
    ours, rival = pair
    gap, decimals = difference(rows, ours, rival, metric), describe(metric)[1]
    if gap is None:
        return f"{ours} (best of ours) and {rival} (best of the others) share no seed, so they cannot be compared."
    amount = fixed(abs(gap.mean), decimals)
    way = "ahead of" if gap.mean > 0 else "behind"
    if gap.half is None:
        return f"{ours} (best of ours) is {amount} {way} {rival} (best of the others), on one seed only."
    ends = f"{fixed(gap.mean - gap.half, decimals)} to {fixed(gap.mean + gap.half, decimals)}"
    said = f"{ours} (best of ours) is {amount} {way} {rival} (best of the others)"
    how = "more than the spread" if gap.clear else "within the spread, so the two are level"
    return f"{said}, {how}: 95 % interval of the difference {ends} over {gap.seeds} common seeds."


def _summary(results: Results, places: Sequence[Sequence[Row]], task: str, metric: str, what: str) -> str:
    ahead = clear_ahead = behind = clear_behind = 0
    for rows in places:
        found = group(rows, lambda row: row.method)
        pair = _pair(results, ranked({m: e for m, e in found.items() if not results.ideal(m)}, metric))
        gap = difference(rows, *pair, metric) if pair else None
        if gap is None:
            continue
        ahead, clear_ahead = ahead + (gap.mean > 0), clear_ahead + (gap.mean > 0 and gap.clear)
        behind, clear_behind = behind + (gap.mean <= 0), clear_behind + (gap.mean <= 0 and gap.clear)
    if not ahead + behind:
        return f"{name_of(task, metric)} in {len(places)} {what}; the best of each is in bold."
    return (
        f"By {name_of(task, metric)}, the best of ours is ahead of the best other method in {ahead} of "
        f"{ahead + behind} {what} (in {clear_ahead} by more than the spread over seeds) and not ahead in {behind} "
        f"(in {clear_behind} by more than the spread)."
    )


def difference(rows: Sequence[Row], a: str, b: str, metric: str) -> Difference | None:
    """a against b on the seeds both have; None when there is none."""
    sign = 1 if describe(metric)[2] else -1
    values: Mapping[str, dict[int, float]] = {
        name: {row.seed: row.value for row in rows if row.method == name} for name in (a, b)
    }
    common = sorted(values[a].keys() & values[b].keys())
    gaps = [sign * (values[a][seed] - values[b][seed]) for seed in common]
    return Difference(sum(gaps) / len(gaps), half_width(gaps), len(gaps)) if gaps else None


def _pair(results: Results, order: Sequence[str]) -> tuple[str, str] | None:
    """The best of ours and the best of the others."""
    ours = [method for method in order if results.ours(method)]
    others = [method for method in order if not results.ours(method)]
    return (ours[0], others[0]) if ours and others else None


def _value(estimate: Estimate, metric: str) -> str:
    unit = " %" if "(%)" in describe(metric)[0] else ""
    return estimate.text(describe(metric)[1]) + unit


def _with(method: str, found: Mapping[str, Estimate], metric: str) -> str:
    return f"{method} has {_value(found[method], metric)}"
