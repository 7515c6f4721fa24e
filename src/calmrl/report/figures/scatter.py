"""A map of representations in the plane: one point per modality of an item, colour and marker say the modality."""

from collections.abc import Sequence

import numpy as np

from calmrl.report.look import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Look
from calmrl.report.results import PointMap
from calmrl.report.svg import Panel, draw, finish, legend_below, points, styled

LOOKS = tuple(
    Look(colour, marker, fill, "-", "", False)
    for fill in ("full", "none")
    for colour, marker in zip((BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY, GREY), "o^sDv>P", strict=True)
)
MOST = 900  # points of a panel; more only hide each other


@styled
def scatter(name: str, alt: str, cloud: PointMap, *, title: str = "", modalities: Sequence[str] = ()) -> Panel:
    """The map. `modalities` fixes who gets which look, so that several panels agree; distances have no unit."""
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
        points(axes, x[at], y[at], LOOKS[j % len(LOOKS)], markersize=3.4, markeredgewidth=0.35, alpha=0.85)
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
    share = min(1.0, MOST / max(len(items), 1))
    count = max(1, int(len(order) * share))
    chosen = {order[i] for i in np.linspace(0, len(order) - 1, count).round().astype(int)} if order else set()
    return np.asarray([item in chosen for item in items], dtype=bool)
