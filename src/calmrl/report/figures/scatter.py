"""A map of representations in the plane: one point per modality of an item, colour and marker say the modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calmrl.report.figures.legend import legend_below
from calmrl.report.look import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, Look
from calmrl.report.svg import Panel, draw, finish, points, styled

LOOKS = tuple(
    Look(colour, marker, fill, "-", "", False)
    for fill in ("full", "none")
    for colour, marker in zip(
        (BLUE, ORANGE, GREEN, PURPLE, VERMILLION, SKY, GREY), ("o", "^", "s", "D", "v", ">", "P"), strict=True
    )
)
MOST = 900  # points of a panel; more only hide each other


@dataclass(frozen=True)
class Cloud:
    """Points: coordinates, and which modality of which item each one is."""

    x: Sequence[float]
    y: Sequence[float]
    modality: Sequence[str]
    item: Sequence[object]


def tsne(
    z: Mapping[str, np.ndarray], present: np.ndarray, *, seed: int, rows: int = 300, perplexity: float = 30.0
) -> Cloud:
    """t-SNE of unit vectors of the same width, all modalities together.

    z: modality -> (N, d); present: (N, k). At most `rows` rows are taken, drawn with `seed`, which also starts t-SNE.
    """
    from sklearn.manifold import TSNE

    generator = np.random.default_rng(seed)
    taken = np.sort(generator.choice(len(present), size=min(rows, len(present)), replace=False))
    here = np.asarray(present)[taken]
    vectors = np.concatenate([np.asarray(a)[taken][here[:, j]] for j, a in enumerate(z.values())])
    names = [name for j, name in enumerate(z) for _ in range(int(here[:, j].sum()))]
    items = np.concatenate([taken[here[:, j]] for j in range(len(z))])
    flat = TSNE(
        perplexity=min(perplexity, (len(vectors) - 1) / 3), init="pca", metric="cosine", random_state=seed
    ).fit_transform(vectors)
    return Cloud(flat[:, 0].tolist(), flat[:, 1].tolist(), names, items.tolist())


@styled
def scatter(name: str, alt: str, cloud: Cloud, *, title: str = "", modalities: Sequence[str] = ()) -> Panel:
    """The map. `modalities` fixes who gets which look, so that several panels agree; distances have no unit."""
    order = list(modalities) or list(dict.fromkeys(cloud.modality))
    kinds = np.asarray([order.index(kind) for kind in cloud.modality])
    x, y = np.asarray(cloud.x, dtype=float), np.asarray(cloud.y, dtype=float)
    keep = _keep(cloud.item)
    figure, (axes,) = draw(3.1)
    handles, labels = [], []
    for j, modality in enumerate(order):
        at = keep & (kinds == j)
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
