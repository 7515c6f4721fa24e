"""Tables of estimates: methods against settings, tasks or metrics, the best in bold, the ideal apart."""

from collections.abc import Callable, Mapping, Sequence

from calmrl._support.text import Heading, Number, Table, plural
from calmrl.metrics.registry import describe
from calmrl.report.results import Estimate, ResultRow, Results, decimals, group
from calmrl.report.style import OURS

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


def _ordered(results: Results, cells: Cells, columns: Sequence[str], m: str) -> list[str]:
    """Methods by their first column, those without a value there after the others."""
    first = {method: e for (method, name), e in cells.items() if name == columns[0]}
    order = [*ranked(first, m), *sorted({method for method, _ in cells} - set(first))]
    return [*(m for m in order if not results.ideal(m)), *(m for m in order if results.ideal(m))]


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
