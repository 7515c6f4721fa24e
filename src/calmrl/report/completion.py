"""How good imputed vectors are: error per direction, coverage of their intervals, anchor shift."""

from collections.abc import Sequence

from calmrl._support.text import plural
from calmrl.metrics.registry import describe, names_of
from calmrl.report.estimates import curve_of, drawn_spread, matrix, ranked, readable
from calmrl.report.figures import Mark, Panel, curves, dots
from calmrl.report.page import Block, Figure
from calmrl.report.results import ResultRow, Results, group
from calmrl.report.style import BLUE, GREY, INK, Style, style_of

FEW = 4  # methods in one panel
MANY = 40  # directions in one panel
SHOWN = ("nmse", "mse", "mse_random", "coverage", *names_of("shift"))  # others are in "Other measurements"
RANDOM = Style(GREY, "x", "full", "-", "", False)


def imputation(results: Results) -> list[Block]:
    """Error of imputed against real vectors per direction, with the error of a random other item."""
    panels: list[Panel] = []
    tables: list[Block] = []
    metrics = {row.metric for row in results.rows}
    metric = "mse" if "mse" in metrics else "nmse"
    rows = [row for row in results.rows if row.metric == metric]
    less = ""
    for place in results.places(rows):
        here = [row for row in rows if row.place == place]
        directions = _directions([row.task for row in here])
        if len(directions) < len({row.task for row in here}):
            less = f" Drawn are {len(directions)} directions, those with one source or all of them; the table has all."
        drawn = [row for row in here if row.task in directions]
        random = [row for row in results.rows if (row.place, row.metric) == (place, "mse_random")]
        random = [row for row in random if metric == "mse" and row.task in directions]
        panels.append(_errors(results, drawn, random, f"imputation-{len(panels) + 1}"))
        for name in ("nmse", "mse"):
            at = [row for row in results.rows if (row.place, row.metric) == (place, name)]
            if at and name == "mse":
                base = [row for row in results.rows if (row.place, row.metric) == (place, "mse_random")]
                at += [row.model_copy(update={"method": "a random other item", "metric": "mse"}) for row in base]
            if at:
                caption = f"{results.place_name(place)}: {describe(name).axis} of imputed against real vectors."
                tables.append(matrix(results, at, lambda row: row.task, caption))
    if not panels:
        return []
    against = "a random other item (cross)" if metric == "mse" else "imputing the mean (dashed)"
    caption = (
        f"Error of imputed against real vectors per direction (sources → target), against {against}. The further left of "
        f"it, the more the sources say about the target. {drawn_spread(results)}{less}"
    )
    return [Figure(caption, panels), *tables]


def _errors(results: Results, rows: Sequence[ResultRow], random: Sequence[ResultRow], name: str) -> Panel:
    metric, place = rows[0].metric, results.place_name(rows[0].place)
    order = ranked(group(rows, lambda row: row.method), metric)
    order = [m for m in order if not results.ideal(m)] or order
    methods = sorted(order, key=lambda method: not results.ours(method))[:FEW]
    estimates, base = group(rows, lambda row: (row.method, row.task)), group(random, lambda row: row.task)
    marks = []
    for task in dict.fromkeys(row.task for row in rows):
        for method in methods:
            if (method, task) in estimates:
                here = estimates[method, task]
                marks.append(Mark(readable(task), here.mean, style_of(method), here.low, here.high, label=method))
        if task in base:
            marks.append(Mark(readable(task), base[task].mean, RANDOM, label="a random other item"))
    label, decimals = describe(metric).axis, describe(metric).decimals
    first = f"{methods[0]} has {group(rows, lambda row: row.method)[methods[0]].mean:.{decimals}f} on average"
    alt = f"Dot plot, {place}: {label} of imputed vectors per direction, {', '.join(methods)}. {first}."
    line = None if base else (1.0, "imputing the mean")
    return dots(name, alt, marks, x=label, title=place, line=line)


def _directions(tasks: Sequence[str]) -> list[str]:
    """All directions; of too many, those from one source and those from the most sources."""
    every = list(dict.fromkeys(tasks))
    if len(every) <= MANY:
        return every
    sources = {task: task.partition("->")[0].count(",") + 1 for task in every}
    return [task for task in every if sources[task] in (1, max(sources.values()))][:MANY]


def coverage(results: Results) -> list[Block]:
    """Share of hidden values inside their predicted interval, against the level it was made for."""
    rows = [row for row in results.rows if row.metric == "coverage" and _level(row.task) is not None]
    panels, tables = list[Panel](), list[Block]()
    for name, here in results.by_place(rows):
        estimates = group(here, lambda row: (row.method, _level(row.task)))
        lines = [
            curve_of(method, sorted((level, one) for (m, level), one in estimates.items() if m == method))
            for method in dict.fromkeys(row.method for row in here)
        ]
        alt = f"Curves, {name}: measured against promised coverage of {plural(len(lines), 'method')}. "
        alt += "; ".join(f"{line.label}: {line.y[-1]:.1f} % at level {line.x[-1]:g} %" for line in lines[:3]) + "."
        number, x, y = (
            f"coverage-{len(panels) + 1}",
            "promised: level of the interval (%)",
            "measured: values inside (%)",
        )
        panels.append(curves(number, alt, lines, x=x, y=y, title=name, diagonal="as promised"))
        caption = f"{name}: share of hidden values (%) inside the predicted interval of each level, which is the goal."
        tables.append(matrix(results, here, lambda row: f"{row.task} %", caption))
    if not panels:
        return []
    caption = (
        "Whether predicted uncertainty can be trusted: the share of hidden values inside their predicted interval, "
        "against the level of the interval. On the dashed line intervals are right; below it, the model is too sure."
    )
    return [Figure(caption, panels), *tables]


def _level(task: str) -> float | None:
    try:
        return float(task)
    except ValueError:
        return None


def shift(results: Results) -> list[Block]:
    """Anchor shift before and after calibration, with its bounds."""
    rows = [row for row in results.rows if row.metric.startswith("anchor_shift")]
    panels, tables = list[Panel](), list[Block]()
    for name, here in results.by_place(rows):
        estimates = group(here, lambda row: (row.method, row.task, row.metric))
        after = {m: e for (m, task, metric), e in estimates.items() if (task, metric) == ("calibrated", "anchor_shift")}
        before = {m: e for (m, task, metric), e in estimates.items() if (task, metric) == ("observed", "anchor_shift")}
        marks = []
        for method in ranked(after or before, "anchor_shift"):
            for task, kind, style in (("observed", *BEFORE), ("calibrated", *AFTER)):
                value = estimates.get((method, task, "anchor_shift"))
                if value is not None:
                    ends = [estimates.get((method, task, f"anchor_shift_{end}")) for end in ("low", "high")]
                    low, high = (None if end is None else end.mean for end in ends)
                    marks.append(Mark(method, value.mean, style, low, high, label=kind))
        if not marks:
            continue
        changes = "; ".join(
            f"{m}: {before[m].mean:.3f} before, {after[m].mean:.3f} after" for m in after if m in before
        )
        alt = f"Dot plot, {name}: anchor shift before and after calibration. {changes}."
        label = describe("anchor_shift").axis
        marked = [mark.row for mark in marks if results.ours(mark.row)]
        panels.append(dots(f"shift-{len(panels) + 1}", alt, marks, x=label, title=name, marked=marked))
        caption = f"{name}: anchor shift (lower is better) before (observed) and after (calibrated), and mean bounds."
        here = sorted(here, key=lambda row: row.task == "observed")  # the methods in the order of what they reach
        metrics = {_shift_column(row): row.metric for row in here}
        tables.append(matrix(results, here, _shift_column, caption, metric=metrics.__getitem__))
    if not panels:
        return []
    caption = (
        "How far the anchor of an item moves because modalities are missing, on held-out complete items: with what is "
        "left (observed) and after imputing (calibrated). 0 is no shift. Bars are not intervals over seeds: they run "
        "from the mean lower to the mean upper bound that hold for every item."
    )
    return [Figure(caption, panels), *tables]


BEFORE = ("observed, with bounds", Style(INK, "o", "none", "-", "", False))
AFTER = ("calibrated, with bounds", Style(BLUE, "o", "full", "-", "", True))


def _shift_column(row: ResultRow) -> str:
    end = row.metric.removeprefix("anchor_shift").removeprefix("_")
    return f"{row.task}, {end} bound" if end else row.task
