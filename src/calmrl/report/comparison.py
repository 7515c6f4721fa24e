"""Who is how good: methods per setting; missing, calibrated and ideal; every direction; classification; over missing rates,
over training, and in the plane."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from calmrl._support.text import Table, capital, plural
from calmrl.metrics.registry import describe, names_of
from calmrl.report.estimates import (
    better,
    curve_of,
    drawn_spread,
    headline,
    headline_rows,
    matrix,
    name_of,
    ranked,
    readable,
    several,
)
from calmrl.report.figures import Curve, Mark, Panel, curves, dots, scatter, small_curves
from calmrl.report.page import Block, Figure, Text
from calmrl.report.results import CurvePoint, Estimate, ResultRow, Results, ResultsFile, estimate, group
from calmrl.report.style import OURS, base_method, style_of

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
    marks = drawn_spread(results)
    if results.seeds > 1:
        marks += " Ticks: single seeds. Look at whether bars overlap."
    caption = (
        f"{capital(name_of(task, metric))} of every method, the best on top. {marks} {OURS}ours. Look at how far the best "
        "is from what is reached with nothing missing (below the rule, where measured)."
    )
    return [Figure(caption, panels), *three_ways(results)]


def compare_panel(results: Results, rows: Sequence[ResultRow], name: str, task: str) -> Panel:
    """Dots of all methods for rows of one setting, task and metric."""
    metric, place = rows[0].metric, results.place_name(rows[0].place)
    estimates: dict[str, Estimate] = group(rows, lambda row: row.method)
    order = results.ideal_last(ranked(estimates, metric))
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
        f"is left to gain. {drawn_spread(results)}"
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
        blocks.append(
            matrix(results, here, _classification_column, caption, metric=lambda column: column.rpartition(", ")[2])
        )
    if panels and several(results):
        caption = "Accuracy of a classifier on the representations, best on top. " + drawn_spread(results)
        blocks.insert(0, Figure(caption, panels))
    return blocks


def _classification_column(row: ResultRow) -> str:
    return f"{row.task.removeprefix('classification ')}, {row.metric}"


def _mark(method: str, estimate: Estimate, row: str, label: str = "", parts: bool = True) -> Mark:
    return Mark(
        row, estimate.mean, style_of(method), estimate.low, estimate.high, estimate.values if parts else (), label
    )


MAPPED = 20  # items that a map needs at least: fewer show nothing
TOGETHER = 6  # methods that one frame can show
AS_IS = "as-is"  # the setting in which nothing is hidden


def rates(results: Results) -> list[Block]:
    """The headline metric over the missing rate: in one frame, or, for many methods, one per base method."""
    x, caption = "missing rate (%)", "as more is missing (the table of settings says of what)"
    return _steps(results, "rate", x, caption, lambda at: f"{at:g} % missing")


def complete_rows(results: Results) -> list[Block]:
    """The headline metric over the number of complete training rows."""
    x, caption = "complete training rows", "as more training rows are complete"
    return _steps(results, "complete", x, caption, lambda at: f"{at:g} complete rows")


def step_curves(results: Results, field: str) -> dict[tuple[str, str], list[Curve]]:
    """(data set, kind of setting) -> a curve per method over `field`, "rate" (in percent) or "complete", the best first.

    Over complete rows, a setting of the same data set in which nothing is hidden is the last point.
    """
    _, metric = headline(results.rows)
    levels = _levels(results, field)
    rows = [row for row in headline_rows(results) if row.place in levels]
    frames: dict[tuple[str, str], list[Curve]] = {}
    for dataset, kind in dict.fromkeys(
        (row.dataset, _kind(row.setting)) for row in rows if _at(row, field) is not None
    ):
        ends = [place for place in levels if place[0] == dataset and place[1] == AS_IS and field == "complete"]
        here = [r for r in rows if (r.dataset, _kind(r.setting)) == (dataset, kind) or r.place in ends]
        estimates = group(here, lambda row: (row.method, levels[row.place]))
        if len({at for _, at in estimates}) < 2:
            continue
        frames[dataset, kind] = [
            curve_of(method, sorted((at, one) for (name, at), one in estimates.items() if name == method))
            for method in ranked(group(here, lambda row: row.method), metric)
        ]
    return frames


def _at(row: ResultRow, field: str) -> float | None:
    value = getattr(row, field)
    return 100 * value if field == "rate" and value is not None else value


def _levels(results: Results, field: str) -> dict[tuple[str, str], float]:
    """Place -> where it stands on the axis."""
    levels = {row.place: at for row in results.rows if (at := _at(row, field)) is not None}
    if field == "complete":
        for place in results.places(row for row in results.rows if row.setting == AS_IS):
            for source in results.sources:
                held = source.meta.patterns.get(results.place_name(place))
                names = set(source.meta.datasets[place[0]].modalities) if place[0] in source.meta.datasets else set()
                if held and names:
                    levels[place] = sum(pattern.rows for pattern in held if set(pattern.has) == names)
    return levels


def _steps(results: Results, field: str, x: str, words: str, column: Callable[[float], str]) -> list[Block]:
    task, metric = headline(results.rows)
    panels, blocks = list[Panel](), list[Block]()
    label, shown = describe(metric).axis, describe(metric).decimals
    y, levels = f"{readable(task)} {label}", _levels(results, field)
    for (dataset, kind), lines in step_curves(results, field).items():
        name = ", ".join(part for part in (dataset, kind) if part)
        ends = f"{lines[0].label} goes from {lines[0].y[0]:.{shown}f} to {lines[0].y[-1]:.{shown}f}"
        alt = f"Curves, {name}: {name_of(task, metric)} of {plural(len(lines), 'method')} over the {x}. {ends}."
        number = f"{'rates' if field == 'rate' else field}-{len(panels) + 1}"
        if len(lines) <= TOGETHER:
            panels.append(curves(number, alt, lines, x=x, y=y, title=name))
        else:
            panels.append(small_curves(number, alt, _families(results, lines), x=x, y=y, title=name, same=True))
        if headline_rows(results, rated=True):  # otherwise the main table has them
            here = [r for r in headline_rows(results) if (r.dataset, _kind(r.setting)) == (dataset, kind)]
            here = sorted((r for r in here if r.place in levels), key=lambda row: levels[row.place])
            caption = f"{name}: {readable(task)} {label} at every step."
            blocks.append(matrix(results, here, lambda row: column(levels[row.place]), caption, head=str))
    if not panels:
        return []
    caption = (
        f"{capital(name_of(task, metric))} {words}. Look at who falls slowest, and where lines cross. "
        f"{drawn_spread(results, 'bands')} Where every family of methods has its own frame, the best of ours and what is "
        "reached with nothing missing are drawn in each, for comparison."
    )
    return [Figure(caption, panels), *blocks]


def _families(results: Results, lines: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Family -> its curves, the best of ours and the best ideal."""
    guides = [next((c for c in lines if test(c.label)), None) for test in (results.ideal, results.ours)]
    marks = [curve for curve in guides if curve is not None]
    frames: dict[str, list[Curve]] = {}
    for curve in lines:
        if not results.ideal(curve.label):
            frames.setdefault(base_method(curve.label)[0], []).append(curve)
    return {name: [*(mark for mark in marks if mark not in own), *own] for name, own in frames.items()}


def _kind(setting: str) -> str:
    """mcar 0.5 -> mcar"""
    return re.sub(r"[\s=:]*[\d.]+\s*%?$", "", setting)


def training(results: Results) -> list[Block]:
    """Loss and validation curves, one frame per base method; and the seconds."""
    blocks: list[Block] = []
    losses, checks = list[Panel](), list[Panel]()
    for source in results.sources:
        for setting in dict.fromkeys(step.setting for step in source.meta.curves):
            steps = [step for step in source.meta.curves if step.setting == setting]
            name = _titled(results, source, setting)
            for field, panels_of, word in (("loss", losses, "training loss"), ("val", checks, "validation score")):
                frames = _frames(steps, field)
                if frames:
                    every = [curve for lines in frames.values() for curve in lines]
                    alt = f"Curves, {name}: {word} over steps, {plural(len(every), 'method')} in {len(frames)} frames. "
                    alt += f"{every[0].label} goes from {every[0].y[0]:.3g} to {every[0].y[-1]:.3g}."
                    number, same = f"{field}-{len(panels_of) + 1}", field == "val"
                    panels_of.append(small_curves(number, alt, frames, x="step", y=word, title=name, same=same))
    if losses:
        caption = (
            f"Training loss. {drawn_spread(results, 'bands')} Objectives have different scales, so every family "
            "has its own axis: look at shapes (does it still fall, does it jump), not at heights."
        )
        blocks.append(Figure(caption, losses))
    if checks:
        caption = f"The score on validation data. {drawn_spread(results, 'bands')} All frames share one axis."
        blocks.append(Figure(caption, checks))
    timed = [row for row in results.rows if row.seconds is not None]
    if timed:
        names = {place: results.place_name(place) for place in results.places(timed)}
        timed = [row.model_copy(update={"value": row.seconds, "metric": "seconds"}) for row in timed]
        caption = "Seconds per run, as far as recorded."
        blocks.append(matrix(results, timed, lambda row: names[row.place], caption, head=str, bold=False))
    return blocks


def _frames(steps: Sequence[CurvePoint], field: str) -> dict[str, list[Curve]]:
    """Family -> a curve per variant."""
    by_step: dict[str, dict[float, list[float]]] = {}
    for step in steps:
        value = getattr(step, field)
        if value is not None and np.isfinite(value):
            by_step.setdefault(step.method, {}).setdefault(step.step, []).append(value)
    frames: dict[str, list[Curve]] = {}
    for method, points in by_step.items():
        means = [(at, estimate(values, [0])) for at, values in sorted(points.items())]
        frames.setdefault(base_method(method)[0], []).append(curve_of(method, means))
    return frames


def maps(results: Results) -> list[Block]:
    """Representations in the plane, one panel per method."""
    panels: list[Panel] = []
    for source in results.sources:
        order = list(dict.fromkeys(kind for points in source.meta.maps.values() for kind in points.modality))
        for method, points in source.meta.maps.items():
            name, items = _titled(results, source, method), len(set(points.item))
            if items < MAPPED:
                continue
            alt = f"Map of {items} items, {name}: one point per item and modality ({', '.join(order)})."
            title = f"{name} ({items} items)"
            panels.append(scatter(f"map-{len(panels) + 1}", alt, points, title=title, modalities=order))
    if not panels:
        return []
    caption = (
        "Representations of held-out items laid out in the plane so that neighbours stay neighbours; one point per "
        "modality of an item. Where each modality forms its own island there is a gap between them; where they mix, "
        "one can be found from the other. Only neighbourhoods mean something, not axes or long distances."
    )
    return [Figure(caption, panels)]


def _titled(results: Results, source: ResultsFile, name: str) -> str:
    """The name, with its directory when there are several."""
    return ", ".join(part for part in (name, source.name if len(results.sources) > 1 else "") if part) or "all rows"
