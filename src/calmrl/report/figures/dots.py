"""Dots in rows: every row is a named thing, every mark a value with its interval. The reader needs no colour."""

from collections.abc import Sequence
from dataclasses import dataclass

from calmrl.report.look import INK, OURS, SOFT, Look
from calmrl.report.svg import Panel, clip, draw, finish, legend_below, points, styled

ROW, DENSE = 0.21, 0.175  # inches per row
ROOMY = 16  # rows; with more, marks are not moved apart and rows are closer


@dataclass(frozen=True)
class Mark:
    """A value in a row. `low` and `high` draw a bar, `parts` small dots (the seeds), `label` an entry in the legend."""

    row: str
    value: float
    look: Look
    low: float | None = None
    high: float | None = None
    parts: tuple[float, ...] = ()
    label: str = ""


@styled
def dots(
    name: str,
    alt: str,
    marks: Sequence[Mark],
    *,
    x: str,
    title: str = "",
    marked: Sequence[str] = (),
    line: tuple[float, str] | None = None,
    apart: int = 0,
    connect: bool = False,
) -> Panel:
    """Rows from top to bottom in the order they occur.

    x: label of the axis, with unit. marked: rows of our methods. line: a dashed reference (value, label). apart: so many rows
    at the end stand below a rule. connect: join the marks of a row. Marks of one row with different labels are moved
    apart a little when they have intervals, so that these do not hide each other.
    """
    rows = list(dict.fromkeys(mark.row for mark in marks))
    labels = list(dict.fromkeys(mark.label for mark in marks if mark.label))
    spread = len(labels) > 1 and any(mark.low is not None for mark in marks)
    spread = spread and len(rows) <= ROOMY
    step = 0.5 / max(len(labels) - 1, 1) if spread else 0.0
    height = max(ROW if len(rows) <= ROOMY else DENSE, 0.1 * len(labels) if spread else 0)
    figure, (axes,) = draw(0.75 + height * len(rows) + (0.1 if apart else 0))
    handles: dict[str, object] = {}
    for mark in marks:
        y = rows.index(mark.row) + (step * (labels.index(mark.label) - (len(labels) - 1) / 2) if mark.label else 0.0)
        width = 1.8 if mark.look.strong else 1.1
        if mark.low is not None and mark.high is not None:
            axes.plot([mark.low, mark.high], [y, y], color=mark.look.colour, linewidth=width, zorder=3)
            for end in (mark.low, mark.high):
                axes.plot([end, end], [y - 0.13, y + 0.13], color=mark.look.colour, linewidth=0.9, zorder=3)
        if mark.parts:
            axes.plot(mark.parts, [y] * len(mark.parts), "|", color=INK, markersize=5, markeredgewidth=0.7, zorder=3.5)
        points(axes, [mark.value], [y], mark.look)
        if mark.label and mark.label not in handles:
            handles[mark.label] = axes.lines[-1]
    if connect:
        for i, row in enumerate(rows):
            values = [mark.value for mark in marks if mark.row == row]
            axes.plot([min(values), max(values)], [i, i], color=SOFT, linewidth=0.8, zorder=1)
    if line is not None:
        axes.axvline(line[0], color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=2)
        handles[line[1]] = axes.lines[-1]
    if apart:
        axes.axhline(len(rows) - apart - 0.5, color=SOFT, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [clip(OURS * (row in marked) + row, 28) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(clip(x, 60))
    legend_below(figure, list(handles.values()), list(handles))
    return finish(figure, name, alt, title)
