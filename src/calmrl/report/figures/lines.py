"""Curves with bands: a value over missing rate, nominal level or step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from calmrl.report.look import INK, Look
from calmrl.report.svg import Panel, clip, draw, finish, legend_below, points, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FINEST = 80  # points of a curve that a panel can show


@dataclass(frozen=True)
class Curve:
    """One line: x, y, and the ends of its band where there is one."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    look: Look
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@styled
def curves(
    name: str,
    alt: str,
    lines: Sequence[Curve],
    *,
    x: str,
    y: str,
    title: str = "",
    diagonal: str = "",
    height: float = 2.7,
) -> Panel:
    """All curves in one frame, with markers; `diagonal` names the line y = x.

    With more than five curves only those of `strong` looks keep their bands, which would hide each other.
    """
    crowded = len(lines) > 5
    lines = [replace(curve, low=None) if crowded and not curve.look.strong else curve for curve in lines]
    figure, (axes,) = draw(height)
    handles = [_curve(axes, curve, markers=True) for curve in lines]
    labels = [curve.label for curve in lines]
    if diagonal:
        ends = (min(min(curve.x) for curve in lines), max(max(curve.x) for curve in lines))
        handles += axes.plot(ends, ends, color=INK, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        labels.append(diagonal)
    axes.set_xlabel(clip(x, 60))
    axes.set_ylabel(clip(y, 44))
    legend_below(figure, handles, labels)
    return finish(figure, name, alt, title)


@styled
def small_curves(
    name: str, alt: str, frames: Mapping[str, Sequence[Curve]], *, x: str, y: str, title: str = "", same: bool = False
) -> Panel:
    """One small frame per entry of `frames`, two in a row; `same` gives all of them the same y axis."""
    rows = -(-len(frames) // 2)
    figure, every = draw(0.5 + 1.15 * rows, rows, min(2, len(frames)), sharex=True, sharey=same)
    handles: dict[str, Any] = {}
    for axes, (heading, lines) in zip(every, frames.items(), strict=False):
        for curve in lines:
            handle = _curve(axes, curve, markers=False)
            handles.setdefault(curve.label, handle)
        axes.set_title(clip(heading, 28), fontsize=7.5, loc="left")
        axes.locator_params(nbins=4)
        axes.tick_params(labelsize=7)
    for axes in every[len(frames) :]:
        axes.set_visible(False)
    if len(frames) % 2 and len(frames) > 1:
        every[len(frames) - 2].tick_params(labelbottom=True)  # nothing stands below it
    for axes in every[max(len(frames) - 2, 0) : len(frames)]:
        axes.set_xlabel(clip(x, 60))
    for axes in every[::2]:
        axes.set_ylabel(clip(y, 22), fontsize=7)
    legend_below(figure, list(handles.values()), list(handles))
    return finish(figure, name, alt, title)


def _curve(axes: Axes, curve: Curve, *, markers: bool) -> Any:
    """Draw it; the handle for the legend shows line and marker."""
    from matplotlib.lines import Line2D

    keep = np.unique(np.linspace(0, len(curve.x) - 1, min(FINEST, len(curve.x))).round().astype(int))
    x, y = np.asarray(curve.x)[keep], np.asarray(curve.y)[keep]
    look, width = curve.look, 1.9 if curve.look.strong else 1.1
    if curve.low is not None and curve.high is not None:
        low, high = np.asarray(curve.low)[keep], np.asarray(curve.high)[keep]
        axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
    axes.plot(x, y, color=look.colour, linestyle=look.line, linewidth=width, zorder=3)
    handle = Line2D([], [], color=look.colour, linestyle=look.line, linewidth=width)
    if markers:
        points(axes, x, y, look, markersize=5)
        handle.update_from(axes.lines[-1])
        handle.set_linestyle(look.line)
        handle.set_linewidth(width)
    return handle
