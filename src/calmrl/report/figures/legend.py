"""A legend below the axes: entries in the order they were drawn, in as many columns as fit a panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calmrl.report.svg import clip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTERS = 58  # that fit the width of a panel at the size of the legend


def legend_below(figure: Figure, handles: list[Any], labels: list[str]) -> None:
    """Put the legend under everything and make the figure higher by its rows."""
    if not labels:
        return
    labels = [clip(label, 44) for label in labels]
    longest = max(map(len, labels))
    columns = max(1, min(3, len(labels), LETTERS // (longest + 6)))
    rows = -(-len(labels) // columns)
    figure.set_figheight(figure.get_figheight() + 0.165 * rows + 0.1)
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, fontsize=7.5, frameon=False,
                  handlelength=2.4, columnspacing=1.2, labelspacing=0.35, borderaxespad=0.2)  # fmt: skip
