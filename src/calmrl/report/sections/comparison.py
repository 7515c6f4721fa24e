"""Who is how good: methods per setting; missing, calibrated and ideal; every direction; classification."""

import re
from collections.abc import Sequence

from calmrl._support.text import Table, capital, plural
from calmrl.metrics.registry import describe, names_of
from calmrl.report.blocks import Block, Figure, Text
from calmrl.report.estimates import better, matrix, ranked, readable
from calmrl.report.figures import Mark, Panel, dots
from calmrl.report.results import Estimate, ResultRow, Results, group
from calmrl.report.sentences import headline, headline_rows, name_of, several
from calmrl.report.style import OURS, style_of

MANY = 40  # rows of a panel
LEAST = 5.0  # percentage points that an axis spans at least
WAYS = ("best of the others", "best of ours")
FUSED = re.compile(r"fused (\d+|halves), .*")  # not those of single targets


def main_table(results: Results) -> Table:
    """Method against setting, the headline metric."""
    task, metric = headline(results.rows)
    rows = headline_rows(results, rated=False)
    names = {place: results.place_name(place) for place in results.places(rows)}
    caption = f"{capital(readable(task))} {describe(metric).axis}{better(metric)}."
    return matrix(results, rows, lambda row: names[row.place], caption, head=str)


def comparison(results: Results) -> list[Block]:
    """One panel per setting with every method and its interval."""
    task, metric = headline(results.rows)
    rows = headline_rows(results, rated=False)
    panels = [
        compare_panel(results, here, f"compare-{i}", readable(task))
        for i, (_, here) in enumerate(results.by_place(rows), 1)
    ]
    caption = (
        f"{capital(name_of(task, metric))} of every method, the best on top. Markers: mean over seeds; bars: 95 % interval of "
        f"the mean; ticks: single seeds. {OURS}ours. Look at whether bars overlap, and "
        "at how far the best is from what is reached with nothing missing (below the rule, where measured)."
    )
    return [Figure(caption, panels), *three_ways(results)]


def compare_panel(results: Results, rows: Sequence[ResultRow], name: str, task: str) -> Panel:
    """Dots of all methods for rows of one setting, task and metric."""
    metric, place = rows[0].metric, results.place_name(rows[0].place)
    estimates: dict[str, Estimate] = group(rows, lambda row: row.method)
    order = ranked(estimates, metric)
    order = [*(m for m in order if not results.ideal(m)), *(m for m in order if results.ideal(m))]
    label, decimals = describe(metric).axis, describe(metric).decimals
    marks = [_mark(method, estimates[method], method) for method in order]
    first = "; ".join(f"{method} {estimates[method].text(decimals)}" for method in order[:3])
    alt = f"Dot plot, {place}: {task} {label} of {plural(len(order), 'method')}. First: {first}."
    return dots(
        name,
        alt,
        marks,
        x=f"{task} {label}",
        title=f"{place} (n = {estimates[order[0]].items})",
        marked=[method for method in order if results.ours(method)],
        apart=0 if all(map(results.ideal, order)) else sum(map(results.ideal, order)),
        least=LEAST if describe(metric).unit == "%" else 0.0,
    )


def three_ways(results: Results) -> list[Block]:
    """Per direction: the best method with holes, the best calibrated one, and nothing missing."""
    task, metric = headline(results.rows)
    panels: list[Panel] = []
    rows = [row for row in results.rows if row.metric == metric and (row.task == task or "->" in row.task)]
    for _, here in results.by_place(rows):
        order = ranked(group([row for row in here if row.task == task], lambda row: row.method), metric)
        best: dict[str, str] = {}
        for method in order:
            best.setdefault("ideal" if results.ideal(method) else WAYS[results.ours(method)], method)
        best_of = {kind: best[kind] for kind in (*WAYS, "ideal") if kind in best}
        if len(best_of) == 3 and len({row.task for row in here}) > 1:
            panels.append(_three(results, here, best_of, f"three-{len(panels) + 1}", metric))
    if not panels:
        return []
    caption = (
        f"What missing modalities cost and what is recovered, {metric} per direction: the best of the other methods, the best "
        "of ours, and the best with nothing missing (ideal), chosen by the first line. The closer ours is to ideal, the less "
        "is left to gain. Bars: 95 % intervals over seeds."
    )
    return [Figure(caption, panels)]


def _three(results: Results, rows: Sequence[ResultRow], best_of: dict[str, str], name: str, metric: str) -> Panel:
    tasks = sorted({row.task for row in rows}, key=lambda task: ("->" in task, task))[:MANY]
    estimates = group(rows, lambda row: (row.method, row.task))
    marks = [
        _mark(method, estimates[method, task], readable(task), _legend(kind, method), parts=False)
        for task in tasks
        for kind, method in best_of.items()
        if (method, task) in estimates
    ]
    place, label, decimals = results.place_name(rows[0].place), describe(metric).axis, describe(metric).decimals
    first = ", ".join(
        f"{kind} ({method}) {estimates[method, tasks[0]].text(decimals)}"
        for kind, method in best_of.items()
        if (method, tasks[0]) in estimates
    )
    alt = f"Dot plot, {place}: {label} per direction, best others, ours and ideal. {readable(tasks[0])}: {first}."
    return dots(name, alt, marks, x=label, title=place, connect=True)


def _legend(kind: str, method: str) -> str:
    return method if kind == method else f"{kind}: {method}"


def retrieval(results: Results) -> list[Block]:
    """Tables: all averages, every direction, pools of incomplete items, queries of several modalities."""
    blocks: list[Block] = []
    every = [metric for metric in names_of("retrieval") if describe(metric).sign]  # headings have the level of chance
    for name, here in results.by_place(results.rows):
        average = [row for row in here if row.task == "average" and row.metric in every]
        if len({row.metric for row in average}) > 1:
            caption = f"{name}: averages over all directions (R@k in percent; MedR: median rank, lower is better)."
            blocks.append(matrix(results, average, lambda row: row.metric, caption, metric=str))
        directions = [row for row in here if "->" in row.task and row.metric == "R@1"]
        if directions:
            blocks.append(matrix(results, directions, lambda row: row.task, f"{name}: R@1 (%) per direction."))
        pools = [row for row in here if row.task.startswith("mixed-pool") and row.metric == "R@1"]
        if pools:
            caption = f"{name}: R@1 (%) in one pool of incomplete items, by how items are represented."
            blocks.append(matrix(results, pools, lambda row: row.task.removeprefix("mixed-pool "), caption))
        fused = [row for row in here if FUSED.fullmatch(row.task) and row.metric == "R@1"]
        if fused:
            caption = f"{name}: R@1 (%) of queries of so many modalities, by how they are fused."
            blocks.append(matrix(results, fused, lambda row: row.task.removeprefix("fused "), caption))
    if any(row.metric in every and row.metric != "R@1" and row.task != "average" for row in results.rows):
        blocks.append(Text("The other metrics of single directions and pools are in results.json."))
    return blocks


def classification(results: Results) -> list[Block]:
    """Accuracy by kind of classifier, one panel per setting and kind, and a table."""
    every = names_of("classification")
    rows = [row for row in results.rows if row.task.startswith("classification") and row.metric in every]
    panels, blocks = list[Panel](), list[Block]()
    for name, here in results.by_place(rows):
        for task in dict.fromkeys(row.task for row in here if row.metric == "accuracy" and " without " not in row.task):
            at = [row for row in here if (row.task, row.metric) == (task, "accuracy")]
            panels.append(compare_panel(results, at, f"classify-{len(panels) + 1}", task))
        caption = f"{name}: classification, accuracy and macro-F1 (%)."
        blocks.append(matrix(results, here, _class_column, caption, metric=lambda column: column.rpartition(", ")[2]))
    if panels and several(results):
        caption = "Accuracy of a classifier on the representations, best on top; bars: 95 % interval over seeds."
        blocks.insert(0, Figure(caption, panels))
    return blocks


def _class_column(row: ResultRow) -> str:
    return f"{row.task.removeprefix('classification ')}, {row.metric}"


def _mark(method: str, estimate: Estimate, row: str, label: str = "", parts: bool = True) -> Mark:
    return Mark(
        row, estimate.mean, style_of(method), estimate.low, estimate.high, estimate.values if parts else (), label
    )
