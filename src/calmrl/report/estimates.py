"""Estimates as tables and as sentences.

Tables: methods against settings, tasks or metrics, the best in bold, the ideal apart. Sentences follow the numbers: who is
best, by how much, and whether that is more than the spread.
"""

from collections.abc import Callable, Mapping, Sequence

from calmrl._support.text import Heading, Number, Table, fixed, plural, sentence
from calmrl.metrics.registry import describe
from calmrl.metrics.significance import PairedDifference, paired_t
from calmrl.report.figures import Curve
from calmrl.report.results import Estimate, ResultRow, Results, decimals, group
from calmrl.report.style import OURS, style_of

Cells = Mapping[tuple[str, str], Estimate]  # (method, column)
WIDE = 8  # columns; with more, and fewer methods than that, the methods become the columns


def readable(task: str) -> str:
    """text->image as people write it."""
    return task.replace("->", "\u00a0→ ").replace("|", "\u00a0| ")


def better(metric: str) -> str:
    """ ", lower is better"; nothing where neither way is."""
    return f", {describe(metric).better} is better" if describe(metric).sign else ""


def ranked(estimates: Mapping[str, Estimate], metric: str) -> list[str]:
    """Names, best mean first; equal means, and metrics of which neither way is better, in the order of the names."""
    sign = describe(metric).sign
    return sorted(estimates, key=lambda name: (-sign * estimates[name].mean, name))


def matrix(
    results: Results,
    rows: Sequence[ResultRow],
    column: Callable[[ResultRow], str],
    caption: str,
    *,
    metric: Callable[[str], str] | None = None,
    head: Callable[[str], str] = readable,
    bold: bool = True,
) -> Table:
    """Method against whatever `column` names. `metric(column)` is the metric of a column when they differ.

    `bold` marks the best method of every column. n and the number of seeds stand in the heading where all methods
    agree, otherwise in the cells. The caption is completed with what ± means.
    """
    cells = group(rows, lambda row: (row.method, column(row)))
    columns = list(dict.fromkeys(column(row) for row in rows))
    of = {name: metric(name) if metric else rows[0].metric for name in columns}
    methods = _ordered(results, cells, columns, of[columns[0]])
    levels = _chances(results, rows, column, of)
    best = {
        name: _best(results, cells, methods, name, of[name], levels.get(name)) if bold else set() for name in columns
    }
    agreed = {name: _agreed([cells[m, name] for m in methods if (m, name) in cells]) for name in columns}
    common = agreed[columns[0]] if len(set(agreed.values())) == 1 else ""
    means = {m: [e.mean for (_, name), e in cells.items() if of[name] == m] for m in of.values()}
    places = {name: decimals(of[name], means[of[name]]) for name in columns}

    def cell(method: str, name: str) -> Number | str:
        here = cells.get((method, name))
        if here is None:
            return "–"
        note = "" if agreed[name] else f"n = {here.items}, {plural(here.seeds, 'seed')}"
        return Number(here.text(places[name]), here.mean, method in best[name], note)

    caption = f"{caption} {spread_words(list(cells.values()))}" + (f" {common} throughout." if common else "")
    chance = {name: f"chance {levels[name]:.1f}" if name in levels else "" for name in columns}
    notes = {name: "; ".join(filter(None, ("" if common else agreed[name], chance[name]))) for name in columns}
    if len(columns) > WIDE and len(methods) < len(columns):
        turned = [
            [head(name) + (f" ({notes[name]})" if notes[name] else ""), *(cell(method, name) for method in methods)]
            for name in columns
        ]
        return Table(
            caption + (" Bold: best of each line." if bold else ""), ["task", *map(results.marked, methods)], turned
        )
    lines, apart = (
        [
            [results.marked(method), *(cell(method, name) for name in columns)]
            for method in methods
            if results.ideal(method) is ideal
        ]
        for ideal in (False, True)
    )
    caption += " Bold number: best of each column." if any(best.values()) else ""
    caption += f" {OURS}ours." if any(map(results.ours, methods)) else ""
    caption += " Below the rule: nothing missing." if apart else ""
    headings = [Heading(head(name), notes[name]) if notes[name] else head(name) for name in columns]
    return Table(caption, ["method", *headings], lines, apart)


def _chances(
    results: Results, rows: Sequence[ResultRow], column: Callable[[ResultRow], str], of: Mapping[str, str]
) -> dict[str, float]:
    """Column -> what a random order reaches, for metrics that have such a level."""
    known = {metric: results.chances(metric) for metric in set(of.values())}
    levels: dict[str, list[float]] = {}
    for name, where in dict.fromkeys((column(row), (row.place, row.task)) for row in rows):
        if where in known[of[name]]:
            levels.setdefault(name, []).append(known[of[name]][where])
    return {name: sum(each) / len(each) for name, each in levels.items()}


def spread_words(estimates: Sequence[Estimate]) -> str:
    """What ± means for these numbers."""
    if all(estimate.half is None for estimate in estimates):
        return "One seed, so no intervals."
    alone = "; numbers without ± come from one seed" if any(estimate.half is None for estimate in estimates) else ""
    return f"Mean ± 95 % interval (Student's t) over seeds{alone}."


def drawn_spread(results: Results, what: str = "bars") -> str:
    """What bars or bands of a figure mean."""
    return "One seed, so no intervals." if results.seeds == 1 else f"Means over seeds; {what}: 95 % intervals."


def curve_of(method: str, points: Sequence[tuple[float, Estimate]]) -> Curve:
    """A line through the means of a method, with their intervals as its band."""
    x, estimates = [at for at, _ in points], [estimate for _, estimate in points]
    low, high = [e.mean - (e.half or 0) for e in estimates], [e.mean + (e.half or 0) for e in estimates]
    return Curve(method, x, [e.mean for e in estimates], style_of(method), low, high)


def _ordered(results: Results, cells: Cells, columns: Sequence[str], m: str) -> list[str]:
    """Methods by their first column, those without a value there after the others."""
    first = {method: e for (method, name), e in cells.items() if name == columns[0]}
    order = [*ranked(first, m), *sorted({method for method, _ in cells} - set(first))]
    return results.ideal_last(order)


def _best(
    results: Results, cells: Cells, methods: Sequence[str], name: str, metric: str, chance: float | None
) -> set[str]:
    """The methods that read the same as the best mean.

    None when there is none to beat, when neither way is better, or when the best is not above chance.
    """
    means = {m: cells[m, name].mean for m in methods if (m, name) in cells and not results.ideal(m)}
    sign = describe(metric).sign
    if len(means) < 2 or not sign:
        return set()
    top = sign * max(sign * mean for mean in means.values())
    shown = decimals(metric, means.values())
    best = {m for m, mean in means.items() if round(mean, shown) == round(top, shown)}
    if chance is not None and not any(sign * (_worse_end(cells[m, name], sign) - chance) > 0 for m in best):
        return set()
    return best


def _worse_end(estimate: Estimate, sign: int) -> float:
    """The end of the interval that is worse; of one seed, its value."""
    end = estimate.low if sign > 0 else estimate.high
    return estimate.mean if end is None else end


def _agreed(estimates: Sequence[Estimate]) -> str:
    if len({(estimate.items, estimate.seeds) for estimate in estimates}) != 1:
        return ""
    return f"n = {estimates[0].items}, {plural(estimates[0].seeds, 'seed')}"


PREFERRED = ("R@1", "accuracy", "nmse", "mse", "anchor_shift")
SPELLED_OUT = 3  # settings with sentences of their own


def headline(rows: Sequence[ResultRow]) -> tuple[str, str]:
    """The task and metric that the first screen shows: average R@1 if there is one, else the most frequent good choice."""
    measured = list(dict.fromkeys((row.task, row.metric) for row in rows))
    if ("average", "R@1") in measured:
        return "average", "R@1"
    for metric in PREFERRED:
        tasks = [task for task, name in measured if name == metric]
        if tasks:
            return max(tasks, key=lambda task: sum((row.task, row.metric) == (task, metric) for row in rows)), metric
    return measured[0]


def headline_rows(results: Results, *, rated: bool | None = None) -> list[ResultRow]:
    """The rows of the headline; `rated` picks settings that are (or are not) steps: of a missing rate, or of complete rows.

    Where every setting is such a step, none is: they are the settings.
    """
    shown = headline(results.rows)
    rows = [row for row in results.rows if (row.task, row.metric) == shown]
    steps = {row.place for row in rows if row.rate is not None or row.complete is not None}
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
    remarks = [
        f"{source.name}: {remark}" if len(results.sources) > 1 else sentence(remark)
        for source in results.sources
        for remark in source.meta.remarks
    ]
    task, metric = headline(results.rows)
    sentences = []
    for rated in (False, True):
        rows = headline_rows(results, rated=rated)
        places, what = results.by_place(rows), "steps" if rated else "settings"
        if len(places) > SPELLED_OUT:
            sentences.append(_summary(results, [here for _, here in places], task, metric, what))
        else:
            sentences += [_place(results, place, here, task, metric) for place, here in places]
    return sentences + remarks


def several(results: Results) -> bool:
    """Whether there is anything to compare."""
    return len({row.method for row in results.rows}) > 1


def _place(results: Results, place: str, rows: Sequence[ResultRow], task: str, metric: str) -> str:
    means: dict[str, Estimate] = group(rows, lambda row: row.method)
    order = ranked({m: e for m, e in means.items() if not results.ideal(m)}, metric)
    ideal = ranked({m: e for m, e in means.items() if results.ideal(m)}, metric)
    full = f" With nothing missing: {_value(means[ideal[0]], metric)}." if ideal else ""
    if not order:
        return f"{place}:{full}"
    best = order[0]
    verb = "is best," if several(results) else "reaches"
    text = f"{place}: {best} {verb} {name_of(task, metric)} {_value(means[best], metric)}"
    text += f" (n = {means[best].items}, {plural(means[best].seeds, 'seed')})"
    pair = _pair(results, order)
    if pair and pair[0] == best:
        text += f", {_compared(rows, *pair, metric)}, the best other method."
    elif pair:
        text += f". The best of ours, {pair[0]}, is {_compared(rows, *pair, metric)}."
    else:
        text += "."
    return text + full


def _compared(rows: Sequence[ResultRow], ours: str, rival: str, metric: str) -> str:
    """0.9 (95 % interval 0.8 to 1.0) ahead of gram"""
    gap, shown = difference(rows, ours, rival, metric), describe(metric).decimals
    if gap is None:
        return f"not measured on a common seed with {rival}"
    if gap.low is None or gap.high is None:
        how = "one seed"
    else:
        how = f"95 % interval {fixed(gap.low, shown)} to {fixed(gap.high, shown)}"
        how += "" if is_clear(gap) else ": no difference shown"
    if round(gap.difference, shown) == 0:
        return f"level with {rival} ({how})"
    way = "ahead of" if gap.difference > 0 else "behind"
    return f"{fixed(abs(gap.difference), shown)} ({how}) {way} {rival}"


def _summary(results: Results, places: Sequence[Sequence[ResultRow]], task: str, metric: str, what: str) -> str:
    gaps = []
    for rows in places:
        means = group(rows, lambda row: row.method)
        pair = _pair(results, ranked({m: e for m, e in means.items() if not results.ideal(m)}, metric))
        gap = difference(rows, *pair, metric) if pair else None
        gaps += [] if gap is None else [gap]
    if not gaps:
        return f"{name_of(task, metric)} in {len(places)} {what}; the best of each is in bold."
    ahead, behind = [g for g in gaps if g.difference > 0], [g for g in gaps if g.difference < 0]
    level = len(gaps) - len(ahead) - len(behind)
    return (
        f"Over {len(places)} {what}, the best of ours is ahead of the best other method in {len(ahead)} (clearly in "
        f"{sum(map(is_clear, ahead))}) and behind in {len(behind)} (clearly in {sum(map(is_clear, behind))}), "
        f"{f'level in {level}, ' if level else ''}by {name_of(task, metric)}."
    )


def is_clear(gap: PairedDifference) -> bool:
    """Whether the interval does not hold 0."""
    return gap.low is not None and gap.high is not None and not gap.low <= 0 <= gap.high


def difference(rows: Sequence[ResultRow], a: str, b: str, metric: str) -> PairedDifference | None:
    """How much better a is than b (positive: better) on the seeds both have; None when there is none."""
    sign = describe(metric).sign or 1
    values: Mapping[str, dict[int, float]] = {
        name: {row.seed: row.value for row in rows if row.method == name} for name in (a, b)
    }
    common = sorted(values[a].keys() & values[b].keys())
    return paired_t(*([sign * values[name][seed] for seed in common] for name in (a, b))) if common else None


def _pair(results: Results, order: Sequence[str]) -> tuple[str, str] | None:
    """The best of ours and the best of the others."""
    ours = [method for method in order if results.ours(method)]
    others = [method for method in order if not results.ours(method)]
    return (ours[0], others[0]) if ours and others else None


def _value(estimate: Estimate, metric: str) -> str:
    described = describe(metric)
    return estimate.text(described.decimals) + (" %" if described.unit == "%" else "")
