"""Which modalities occur together: counts per pattern, as data, as a small table, and as an UpSet-style plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from calmrl.convention import Array, to_tensor
from calmrl.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DARK, LIGHT, BAR = "#222222", "#d9d9d9", "#0072b2"  # the blue of Okabe and Ito's palette


@dataclass(frozen=True)
class PatternCount:
    """The rows that have exactly these modalities."""

    modalities: tuple[str, ...]
    rows: int
    share: float


def patterns(present: Array, names: Sequence[str]) -> list[PatternCount]:
    """The patterns that occur, most frequent first (then more modalities first, then in the order of `names`).

    Examples
    --------
    >>> [count] = patterns(np.array([[True, False]]), ["image", "text"])
    >>> count.modalities, count.rows
    (('image',), 1)
    """
    mask = to_tensor(present).cpu().numpy()
    if mask.ndim != 2 or mask.shape[1] != len(names):
        raise InputError(f"present has shape {mask.shape} but there are {len(names)} names ({', '.join(names)})")
    unique, counts = np.unique(mask, axis=0, return_counts=True)
    order = sorted(range(len(unique)), key=lambda i: (-counts[i], -unique[i].sum(), tuple(~unique[i])))
    return [
        PatternCount(
            tuple(name for name, here in zip(names, unique[i], strict=True) if here),
            int(counts[i]),
            counts[i] / len(mask),
        )
        for i in order
    ]


def pattern_table(present: Array, names: Sequence[str]) -> str:
    """The patterns as text: one line each, a last line with the rows per modality."""
    counts = patterns(present, names)
    mask = to_tensor(present).cpu().numpy()
    totals = [str(int(total)) for total in mask.sum(axis=0)]
    widths = [max(len(name), len(total)) for name, total in zip(names, totals, strict=True)]
    head = "  ".join(f"{name:>{width}}" for name, width in zip(names, widths, strict=True))
    lines = [f"{head}  {'rows':>9}  {'share':>6}"]
    for pattern in counts:
        marks = ("yes" if name in pattern.modalities else "-" for name in names)
        cells = "  ".join(f"{mark:>{width}}" for mark, width in zip(marks, widths, strict=True))
        lines.append(f"{cells}  {pattern.rows:>9}  {100 * pattern.share:>5.1f}%")
    cells = "  ".join(f"{total:>{width}}" for total, width in zip(totals, widths, strict=True))
    lines.append(f"{cells}  {len(mask):>9}  {'all':>6}")
    return "\n".join(lines)


def plot_patterns(present: Array, names: Sequence[str], path: str | Path | None = None, limit: int = 20) -> Figure:
    """An UpSet-style plot: a column per pattern (dots: its modalities, bar: its rows), a bar per modality at the left.

    At most `limit` patterns get a column; the title says how many rows the others have. Saved when `path` is given.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    counts = patterns(present, names)
    mask = to_tensor(present).cpu().numpy()
    shown, rest = counts[:limit], counts[limit:]
    k = len(names)
    figure = Figure(figsize=(2.9 + 0.42 * max(len(shown), 4), 2.3 + 0.34 * k), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, width_ratios=[1.5, 0.42 * max(len(shown), 4)], height_ratios=[2.0, 0.34 * k])
    bars = figure.add_subplot(grid[0, 1])
    dots = figure.add_subplot(grid[1, 1], sharex=bars)
    sizes = figure.add_subplot(grid[1, 0], sharey=dots)

    x = np.arange(len(shown))
    drawn = bars.bar(x, [pattern.rows for pattern in shown], color=BAR, width=0.62)
    bars.bar_label(drawn, fmt="{:,.0f}", fontsize=7, padding=1, rotation=0 if len(mask) < 1000 else 40)
    bars.set_ylabel("rows", fontsize=9)
    bars.yaxis.set_major_formatter("{x:,.0f}")
    bars.margins(y=0.15)
    for column, pattern in enumerate(shown):
        rows = [j for j, name in enumerate(names) if name in pattern.modalities]
        dots.scatter([column] * k, range(k), s=44, color=LIGHT, zorder=2)
        dots.scatter([column] * len(rows), rows, s=44, color=DARK, zorder=3)
        if rows:
            dots.plot([column, column], [min(rows), max(rows)], color=DARK, linewidth=2, zorder=3)
    dots.set_yticks(range(k), list(names), fontsize=9)
    dots.invert_yaxis()
    dots.set_ylim(k - 0.5, -0.5)
    dots.set_xlim(-0.6, max(len(shown), 4) - 0.4)
    totals = mask.sum(axis=0)
    sizes.barh(range(k), totals, color=BAR, height=0.55)
    for j, total in enumerate(totals):  # the axis runs to the left, so the free side of a bar is its left
        sizes.annotate(
            f"{total:,}", (total, j), (-3, 0), textcoords="offset points", ha="right", va="center", fontsize=7
        )
    sizes.set_xlim(max(len(mask), 1) * 1.6, 0)
    for axes in (bars, dots, sizes):
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelbottom=False)
    bars.tick_params(labelsize=8)
    sizes.tick_params(labelleft=False)
    others = f"; {sum(p.rows for p in rest):,} rows in {len(rest)} rarer patterns are not drawn" if rest else ""
    figure.suptitle(f"{len(mask):,} rows, {len(counts)} pattern{'s' if len(counts) != 1 else ''}{others}", fontsize=9)
    if path is not None:
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None, dpi=150)
    return figure
