"""Which modalities occur together, UpSet style, from top to bottom: a row per pattern, dots and a bar with its rows."""

from collections.abc import Sequence
from pathlib import Path

from calmrl.convention import Array
from calmrl.data.patterns import patterns
from calmrl.report.look import BLUE, FAINT, INK
from calmrl.report.svg import Panel, clip, draw, finish, legend_below, standalone, styled

MOST = 20  # patterns with a row of their own


def plot_patterns(present: Array, names: Sequence[str], path: str | Path) -> Panel:
    """Draw which modalities occur together, and write it as an SVG file.

    Parameters
    ----------
    present: bool (N, k), True where a row has a modality.
    names: the k modalities.
    path: the file to write.
    """
    counts = [(pattern.modalities, pattern.rows) for pattern in patterns(present, names)]
    title = f"{len(present):,} rows, {len(counts)} pattern{'s' if len(counts) != 1 else ''}"
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
    shown, rest = (ranked, []) if len(ranked) <= MOST else (ranked[: MOST - 1], ranked[MOST - 1 :])
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
        text = f"{len(rest)} rarer patterns: {left_over:,} rows ({100 * left_over / total:.1f} %)"
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
