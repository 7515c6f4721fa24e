"""Draw docs/assets/curves.svg and write the tables of docs/results.md again from a comparison.

    calmrl compare curves --out runs/curves
    python docs/make_curves.py runs/curves

One row of frames per data set: R@1 over the number of complete training rows, and over the share of training rows that
keep one modality only. The aligner and the best three other methods, by their mean over all steps. Lines are means over seeds;
every seed is the same split for all methods, so that lines can be compared although R@1 differs more between splits.

A table stands between `<!-- curves: DATASET AXIS -->` and `<!-- end of curves -->`: means over seeds, 95 % intervals, and how
far the aligner is ahead of the best trained objective, by paired bootstrap over test items.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from marked_tables import asked, fill, head, line
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from calmrl.report import Results
from calmrl.report.comparison import step_curves
from calmrl.report.figures import Curve
from calmrl.report.results import group

TARGET = Path(__file__).with_name("assets") / "curves.svg"
PAGE = Path(__file__).with_name("results.md")
INK = "#808890"  # readable on light and on dark
AXES = {"complete": "complete training rows", "rate": "training rows with one modality only (%)"}
SETTINGS = {"complete": re.compile(r"complete (\d+)|as-is"), "rate": re.compile(r"alone (\d+ %)")}
OTHERS = 3  # methods beside the aligner


def frames(results: Results) -> dict[str, dict[str, list[Curve]]]:
    """Data set -> "complete" or "rate" -> curves of the aligner and the best others."""
    grouped: dict[str, dict[str, list[Curve]]] = {}
    for axis in AXES:
        for (dataset, _), lines in step_curves(results, axis).items():
            grouped.setdefault(dataset, {})[axis] = lines
    return {dataset: {axis: _chosen(lines) for axis, lines in axes.items()} for dataset, axes in grouped.items()}


def _chosen(lines: list[Curve]) -> list[Curve]:
    others = [curve for curve in lines if curve.label not in ("aligner", "ideal")]
    best = sorted(others, key=lambda curve: -float(np.mean(curve.y)))[:OTHERS]
    return [*(curve for curve in lines if curve.label == "aligner"), *best]


def draw(results: Results) -> Figure:
    """All frames in one figure."""
    grouped = frames(results)
    figure = Figure(figsize=(9, 0.8 + 2.6 * len(grouped)), layout="constrained")
    figure.patch.set_alpha(0)
    every = figure.subplots(len(grouped), 2, squeeze=False, sharey="row")
    for row, (dataset, by_axis) in zip(every, grouped.items(), strict=True):
        for frame, axis in zip(row, AXES, strict=True):
            _frame(frame, by_axis.get(axis, []), f"{dataset}", AXES[axis])
        row[0].set_ylabel("R@1 (%)", color=INK)
    lines = {line.get_label(): line for frame in every.flat for line in frame.get_lines()}
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=4, frameon=False, labelcolor=INK)
    return figure


def _frame(frame: Axes, lines: list[Curve], title: str, x: str) -> None:
    frame.patch.set_alpha(0)
    frame.tick_params(colors=INK)
    frame.spines[:].set_color(INK)
    frame.spines[["top", "right"]].set_visible(False)
    frame.set_title(title, loc="left", color=INK, fontsize=10)
    frame.set_xlabel(x, color=INK)
    for curve in lines:
        style, width = curve.style, 2.2 if curve.label == "aligner" else 1.2
        frame.plot(
            curve.x,
            curve.y,
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            linewidth=width,
            label=curve.label,
        )
    if x == AXES["complete"] and lines:
        frame.set_xscale("log")
        frame.set_xticks(list(lines[0].x), [f"{at:.0f}" for at in lines[0].x], minor=False)
        frame.minorticks_off()
    frame.set_ylim(bottom=0)


def table(results: Results, tests: dict[str, Any], dataset: str, axis: str) -> str:
    """Methods down, steps of the axis across; `tests` are those of results.json."""
    rows = [row for row in results.rows if (row.task, row.metric, row.dataset) == ("average", "R@1", dataset)]
    steps = {row.place: found for row in rows if (found := SETTINGS[axis].fullmatch(row.setting))}
    cells = group(rows, lambda row: (row.method, row.place))
    methods = [curve.label for curve in frames(results)[dataset][axis]]
    lines = head("R@1 (%)", [found[1] or "all" for found in steps.values()])
    lines += [line(f"`{method}`", [cells[method, place].text(1) for place in steps]) for method in methods]
    gains = []
    for place in steps:
        gain, low, high, _ = tests[results.place_name(place)]["methods"]["aligner"].values()
        gains.append(f"{gain:+.1f} ({low:.1f} to {high:.1f})")
    return "\n".join([*lines, line("ahead by", gains)])


def main() -> None:
    results, meta = asked(__doc__, "calmrl compare curves")
    FigureCanvasSVG(draw(results)).print_svg(TARGET, metadata={"Date": None})
    fill(PAGE, "curves", lambda dataset, axis: table(results, meta["tests"], dataset, axis))


if __name__ == "__main__":
    main()
