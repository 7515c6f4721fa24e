"""Drawings of the reports as SVG: each takes plain numbers and gives a `Panel`, named, without foreign ids, styles or dates.

A panel is about as wide as a phone, so that its letters keep their size there; pages put several panels side by side
when there is room. INK and PAPER become the colours of the page (`inline`) or black on white (`standalone`).
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np

from calmrl._support.parsing import visible
from calmrl._support.text import plural
from calmrl.arrays import Array
from calmrl.data.patterns import patterns
from calmrl.report.results import PointMap
from calmrl.report.style import BLUE, FAINT, GREEN, GREY, INK, ORANGE, OURS, PAPER, PURPLE, SKY, SOFT, VERMILLION, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


P = ParamSpec("P")
WIDTH = 4.0  # inches, 384 px
LETTERS = 52  # of a legend that fit the width of a panel
SETTINGS: Any = {
    "svg.fonttype": "none",
    **dict.fromkeys(("figure.facecolor", "figure.edgecolor", "axes.facecolor"), "none"),
    "svg.hashsalt": "calmrl",
    "text.parse_math": False,  # a "$" in a name is a "$"
    "font.family": "DejaVu Sans",
    **dict.fromkeys(("font.size", "axes.labelsize"), 9),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8.5),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.7),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3),
    "grid.color": SOFT,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "hatch.linewidth": 0.6,
    **dict.fromkeys(("text.color", "axes.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "xtick.labelcolor", "ytick.labelcolor"), INK),
}


@dataclass(frozen=True)
class Panel:
    """One drawing: a file name without ending, what it shows in words, and the SVG."""

    name: str
    alt: str
    svg: str


def styled(function: Callable[P, Panel]) -> Callable[P, Panel]:
    """Decorates what draws a panel: the settings above hold for the time of the call, and nothing else changes."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Panel:
        import matplotlib as mpl

        defaults: Any = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")}
        with mpl.rc_context(defaults | SETTINGS):
            return function(*args, **kwargs)

    return run


def draw(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """An empty figure of panel width, `height` inches high, and its axes from left to right, top to bottom."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.05, h_pad=0.05)  # type: ignore[union-attr, call-arg]
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def finish(figure: Figure, name: str, alt: str, title: str = "") -> Panel:
    """The figure as a panel, with a title at its upper left. The same figure gives the same bytes."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    if title:
        figure.suptitle(clip(title, 50), fontsize=9.5, fontweight="bold", x=0.01, ha="left")
    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})
    return Panel(name, alt, clean(text.getvalue(), name, alt))


def clean(svg: str, name: str, alt: str) -> str:
    """Keep the drawing only: no XML head, metadata, page-wide style or unused id; the used ids begin with `name`."""
    svg = visible(svg[svg.index("<svg") :])
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style[^>]*>.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"<defs>\s*</defs>", "", svg)
    svg = svg.replace("xlink:href", "href")
    used = set(re.findall(r"""(?:href="#|url\(#)([^")]+)""", svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]+", "font-family: sans-serif", svg)
    svg = re.sub(r' (d|x|y|transform|points|clip-path)="[^"]*"', _short, svg)
    box = re.match(r'<svg[^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"[^>]*>', svg)
    assert box is not None, "matplotlib writes a viewBox"
    width, height, svg = float(box[1]), float(box[2]), svg[box.end() :]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
    head += f'width="{width * 4 / 3:.0f}" height="{height * 4 / 3:.0f}" role="img" aria-label="{html.escape(visible(alt))}" '
    head += 'stroke-linejoin="round" stroke-linecap="butt">'
    return re.sub(r">\s+<(?!/?text)", "><", head + svg).strip() + "\n"


def inline(panel: Panel) -> str:
    """For a page: letters and axes in the colour of its text, hollow markers in that of its background."""
    return panel.svg.replace(INK, "currentColor").replace(PAPER, "var(--card)").strip()


def standalone(panel: Panel) -> str:
    """For a file of its own: on white."""
    head, _, body = panel.svg.partition(">")
    return f'{head}><rect width="100%" height="100%" fill="{PAPER}"/>{body}'


def points(axes: Axes, x: Any, y: Any, style: Style, **options: Any) -> None:
    """Markers in the style of a method, whole also at the edge of the axes; hollow ones have the background inside."""
    line_marker = style.marker in ("_", "|", "x", "+")
    half = {"fillstyle": style.fill, "markerfacecoloralt": PAPER} if style.fill in ("left", "bottom") else {}
    inside = PAPER if style.fill == "none" else style.colour
    size = (8.5 if style.marker in ("*", "P") else 6.0) + (1.0 if style.strong else 0.0)
    given = {
        "linestyle": "none",
        "markersize": size,
        "zorder": 4,
        "clip_on": False,
        "markeredgewidth": 1.6 if line_marker else 0.9,
    }
    edge = style.colour if style.fill == "none" or line_marker else INK
    axes.plot(x, y, marker=style.marker, color=style.colour, markerfacecolor=inside, markeredgecolor=edge,
              **{**given, **half, **options})  # fmt: skip


def clip(text: str, letters: int) -> str:
    """A name that fits a drawing; the tables have it in full."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def legend_below(figure: Figure, handles: list[Any], labels: list[str]) -> None:
    """Entries in the order they were drawn, in as many columns as fit a panel, under everything; it adds to the height."""
    if not labels:
        return
    labels = [clip(label, 44) for label in labels]
    columns = max(1, min(3, len(labels), LETTERS // (max(map(len, labels)) + 6)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.185 * rows + 0.1)
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, fontsize=8.5, frameon=False,
                  handlelength=2.4, columnspacing=1.2, labelspacing=0.35, borderaxespad=0.2)  # fmt: skip


def _short(match: re.Match[str]) -> str:
    """Coordinates with two decimals: a tenth of what a screen can show."""
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), match[0])


ROW, DENSE = 0.21, 0.175  # inches per row
ROOMY = 16  # rows; with more, marks are not moved apart and rows are closer


@dataclass(frozen=True)
class Mark:
    """A value in a row. `low` and `high` draw a bar, `parts` small dots (the seeds), `label` an entry in the legend."""

    row: str
    value: float
    style: Style
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
    least: float = 0.0,
) -> Panel:
    """Rows from top to bottom in the order they occur.

    x: label of the axis, with unit. marked: rows of our methods. line: a dashed reference (value, label). apart: so many rows
    at the end stand below a rule. connect: join the marks of a row. least: the axis is at least so wide, so that a small
    difference looks small. Marks of one row with different labels are moved apart a little when they have intervals, so
    that these do not hide each other.
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
        width = 1.8 if mark.style.strong else 1.1
        if mark.low is not None and mark.high is not None:
            axes.plot([mark.low, mark.high], [y, y], color=mark.style.colour, linewidth=width, zorder=3)
            for end in (mark.low, mark.high):
                axes.plot([end, end], [y - 0.13, y + 0.13], color=mark.style.colour, linewidth=0.9, zorder=3)
        if mark.parts:
            axes.plot(mark.parts, [y] * len(mark.parts), "|", color=INK, markersize=5, markeredgewidth=0.7, zorder=3.5)
        points(axes, [mark.value], [y], mark.style)
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
    drawn = [x for mark in marks for x in (mark.value, mark.low, mark.high, *mark.parts) if x is not None]
    if max(drawn) - min(drawn) < least:
        middle = (max(drawn) + min(drawn)) / 2
        axes.set_xlim(middle - 0.55 * least, middle + 0.55 * least)
    elif 0 < min(drawn) < max(drawn) / 3:
        axes.set_xlim(left=0)  # an axis that starts a little above it misleads
    legend_below(figure, list(handles.values()), list(handles))
    return finish(figure, name, alt, title)


FINEST = 80  # points of a curve that a panel can show


@dataclass(frozen=True)
class Curve:
    """One line: x, y, and the ends of its band where there is one."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style
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

    With more than five curves only those of `strong` styles keep their bands, which would hide each other.
    """
    crowded = len(lines) > 5
    lines = [replace(curve, low=None) if crowded and not curve.style.strong else curve for curve in lines]
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
    style, width = curve.style, 1.9 if curve.style.strong else 1.1
    if curve.low is not None and curve.high is not None:
        low, high = np.asarray(curve.low)[keep], np.asarray(curve.high)[keep]
        axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
    axes.plot(x, y, color=style.colour, linestyle=style.line, linewidth=width, zorder=3)
    handle = Line2D([], [], color=style.colour, linestyle=style.line, linewidth=width)
    if markers:
        points(axes, x, y, style, markersize=5)
        handle.update_from(axes.lines[-1])
        handle.set_linestyle(style.line)
        handle.set_linewidth(width)
    return handle


MOST_PATTERNS = 20  # patterns with a row of their own


def plot_patterns(present: Array, names: Sequence[str], path: str | Path) -> Panel:
    """Draw which modalities occur together, and write it as an SVG file.

    Parameters
    ----------
    present: bool (N, k), True where a row has a modality.
    names: the k modalities.
    path: the file to write.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     panel = plot_patterns(np.array([[True, True], [True, False]]), ["image", "text"], f"{folder}/patterns.svg")
    ...     os.listdir(folder)
    ['patterns.svg']
    """
    counts = [(pattern.modalities, pattern.rows) for pattern in patterns(present, names)]
    title = f"{plural(len(present), 'row')}, {plural(len(counts), 'pattern')}"
    panel = upset("patterns", f"Missing patterns: {title}.", counts, names, title=title)
    Path(path).write_text(standalone(panel), encoding="utf-8")
    return panel


@styled
def upset(
    name: str, alt: str, counts: Sequence[tuple[Sequence[str], int]], modalities: Sequence[str], *, title: str = ""
) -> Panel:
    """counts: (the modalities that are there, rows that have exactly these), in any order; the most frequent on top.

    With more than 20 patterns, the last row says in words how many rows the rarer ones have.
    """
    from matplotlib.lines import Line2D

    total = max(sum(rows for _, rows in counts), 1)
    ranked = sorted(counts, key=lambda item: (-item[1], -len(item[0]), [m not in item[0] for m in modalities]))
    shown, rest = (
        (ranked, []) if len(ranked) <= MOST_PATTERNS else (ranked[: MOST_PATTERNS - 1], ranked[MOST_PATTERNS - 1 :])
    )
    k, height = len(modalities), len(shown) + bool(rest)
    left = min(max(0.26 * k, 1.0), 2.6)  # inches for the dots
    names = [clip(modality, 14) for modality in modalities]
    above = 0.6 + 0.07 * max(map(len, names), default=0)  # inches for the slanting names
    figure, (dots, bars) = draw(above + 0.2 * height, 1, 2, sharey=True, width_ratios=[left, 4 - left])
    for i, (has, _) in enumerate(shown):
        there = [j for j, modality in enumerate(modalities) if modality in has]
        dots.plot(range(k), [i] * k, "o", color=FAINT, markersize=5.5, markerfacecolor="none", markeredgewidth=0.7)
        dots.plot(there, [i] * len(there), "o-", color=INK, markersize=6.5, linewidth=1.6)
    if rest:
        left_over = sum(count for _, count in rest)
        text = f"{plural(len(rest), 'rarer pattern')}: {plural(left_over, 'row')} ({100 * left_over / total:.1f} %)"
        bars.text(0, len(shown), text, va="center", fontsize=7)
    rows = [count for _, count in shown]
    drawn = bars.barh(range(len(shown)), rows, height=0.62, color=BLUE, edgecolor=INK, linewidth=0.5)
    bars.bar_label(drawn, [f"{count:,} ({100 * count / total:.1f} %)" for count in rows], padding=3, fontsize=7)
    bars.set_xlim(0, 1.55 * max(rows, default=1))
    bars.locator_params(axis="x", nbins=4)
    bars.xaxis.set_major_formatter("{x:,.0f}")
    bars.set_xlabel("rows")
    bars.spines["left"].set_visible(False)
    bars.tick_params(axis="y", length=0, labelleft=False)
    bars.grid(False, axis="y")
    dots.set_xticks(range(k), names, rotation=55, ha="left", rotation_mode="anchor")
    dots.tick_params(length=0, labeltop=True, labelbottom=False, labelleft=False)
    dots.set_xlim(-0.6, k - 0.4)
    dots.set_ylim(height - 0.4, -0.6)
    dots.grid(False)
    dots.spines[:].set_visible(False)
    here = Line2D([], [], color=INK, marker="o", linestyle="none", markersize=6.5)
    missing = Line2D([], [], color=FAINT, marker="o", linestyle="none", markersize=5.5, markerfacecolor="none")
    legend_below(figure, [here, missing], ["there", "missing"])
    return finish(figure, name, alt, title)


STYLES = tuple(
    Style(colour, marker, fill, "-", "", False)
    for fill in ("full", "none")
    for colour, marker in zip((BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY, GREY), "o^sDv>P", strict=True)
)
MOST_POINTS = 900  # points of a panel; more only hide each other


@styled
def scatter(name: str, alt: str, cloud: PointMap, *, title: str = "", modalities: Sequence[str] = ()) -> Panel:
    """The map. `modalities` fixes who gets which style, so that several panels agree; distances have no unit."""
    order = list(modalities) or list(dict.fromkeys(cloud.modality))
    columns = np.asarray([order.index(modality) for modality in cloud.modality])
    x, y = np.asarray(cloud.x, dtype=float), np.asarray(cloud.y, dtype=float)
    keep = _keep(cloud.item)
    figure, (axes,) = draw(3.1)
    handles, labels = [], []
    for j, modality in enumerate(order):
        at = keep & (columns == j)
        if not at.any():
            continue
        points(axes, x[at], y[at], STYLES[j % len(STYLES)], markersize=3.4, markeredgewidth=0.35, alpha=0.85)
        handles.append(axes.lines[-1])
        labels.append(modality)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel("first coordinate (no unit)")
    axes.set_ylabel("second coordinate (no unit)")
    legend_below(figure, handles, labels)
    return finish(figure, name, alt, title)


def _keep(items: Sequence[object]) -> np.ndarray:
    """All points, or those of evenly chosen items when there are too many."""
    order = list(dict.fromkeys(items))
    share = min(1.0, MOST_POINTS / max(len(items), 1))
    count = max(1, int(len(order) * share))
    chosen = {order[i] for i in np.linspace(0, len(order) - 1, count).round().astype(int)} if order else set()
    return np.asarray([item in chosen for item in items], dtype=bool)
