"""A matplotlib figure as SVG text that can stand in a page: named, without foreign ids, styles or dates.

A panel is about as wide as a phone, so that its letters keep their size there; pages put several panels side by side
when there is room. INK and PAPER become the colours of the page (`inline`) or black on white (`standalone`).
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from calmrl._support.visible import visible
from calmrl.report.look import INK, PAPER, SOFT, Look

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


def points(axes: Axes, x: Any, y: Any, style: Look, **options: Any) -> None:
    """Markers in the look of a method; hollow ones have the background inside."""
    line_marker = style.marker in ("_", "|", "x", "+")
    half = {"fillstyle": style.fill, "markerfacecoloralt": PAPER} if style.fill in ("left", "bottom") else {}
    inside = PAPER if style.fill == "none" else style.colour
    size = (8.5 if style.marker in ("*", "P") else 6.0) + (1.0 if style.strong else 0.0)
    given = {"linestyle": "none", "markersize": size, "zorder": 4, "markeredgewidth": 1.6 if line_marker else 0.9}
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
