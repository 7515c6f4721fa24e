"""What an index holds and what to expect of it, as data and as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from calmrl.metrics.retrieve import chance_level
from calmrl.search.store import reading

if TYPE_CHECKING:
    from calmrl.search.index import Index

SHOWN = 8  # patterns in the sentences


def about(index: Index) -> dict[str, Any]:
    """Counts, patterns of what items have, encoders, versions, and how it is searched."""
    index.refresh()
    layout = index.layout
    description = layout["encoders"] or {"encoders": {}}
    return {
        "path": str(index.path),
        "items": len(index),
        "version": int(index.table.version),
        "modalities": index.modalities(),
        "patterns": patterns(index),
        "encoders": {
            name: {"name": entry["encoder"], **_weights(description["encoders"].get(name))}
            for name, entry in layout["modalities"].items()
        },
        "latents": layout["width"],
        "fitted_on": layout["fitted_on"],
        "search": {"exact": True} if layout["search"] is None else {"exact": False, **layout["search"]},
        "source": layout["source"],
        "made": layout["made"],
        "calmrl": layout["calmrl"],
        "problems": layout["problems"],
    }


def _weights(entry: dict[str, Any] | None) -> dict[str, Any]:
    return {} if entry is None else {"weights": entry["weights"], "signature": entry["signature"]}


def patterns(index: Index) -> dict[str, int]:
    """What items have ("image + text") and how many have it, the most frequent first."""
    names = list(index.layout["modalities"])
    columns = [f"has_{j}" for j in range(len(names))]
    with reading(index.path):
        table = index.table.search().select(columns).limit(max(1, len(index))).to_arrow()
    mask = np.stack([table[column].to_numpy() for column in columns], axis=1)  # (N, k)
    rows, counts = np.unique(mask, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return {" + ".join(name for name, has in zip(names, rows[p], strict=True) if has): int(counts[p]) for p in order}


def summary(index: Index) -> list[str]:
    """Items, patterns, recall to expect per direction, what cannot be searched and why."""
    every = patterns(index)
    listed = ", ".join(f"{count} {name}" for name, count in list(every.items())[:SHOWN])
    more = f", and {len(every) - SHOWN} more patterns" if len(every) > SHOWN else ""
    lines = [f"{len(index)} items: {listed}{more}"]
    expected = index.expected
    if expected:
        lines.append(
            "expected on new items, by cross-validation (R@1 with its 90 % interval, R@10, and what a random order reaches, "
            "in a gallery of n):"
        )
        width = max(map(len, expected))
        for direction, e in expected.items():
            interval = f"({e['low']:.0f} to {e['high']:.0f})"
            first, ten = (f"chance {chance_level(k, int(e['n']), e.get('own', 1.0)):4.1f}" for k in (1, 10))
            lines.append(
                f"  {direction:<{width}}  R@1 {e['R@1']:5.1f} {interval:<11} {first}  R@10 {e['R@10']:5.1f} {ten}  n {e['n']}"
            )
    for name, entry in index.modalities().items():
        if not entry["aligned"]:
            lines.append(f"{name} is found only by {name} itself, not by other modalities: {entry['why']}")
        if not entry["searchable"]:
            lines.append(f"{name}: no encoder is known, so only vectors and items of the index can ask with it")
    how = index.layout["search"]
    if how is None:
        lines.append("search is exact")
    else:
        lines.append(
            f"search is approximate ({how['index']}): it finds "
            f"{100 * how['recall@10']:.1f} % of the true ten nearest ({how['queries']} items as queries)"
        )
    return lines
