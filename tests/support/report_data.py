"""Results as a run would write them, with invented numbers: a demo-like comparison and one with six modalities."""

from __future__ import annotations

from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np

from calmrl.report import Results, results_of

Row = dict[str, Any]
LEVEL = {  # how good a method is, in points of R@1 over the weakest
    "calmrl": 4.6, "closed-form": 4.4, "calmrl-printed": 0.9, "contrastive": 2.6, "contrastive+latent": 4.1,
    "contrastive staged": 1.2, "vast": 1.9, "gram": 2.1, "gram+latent": 3.9, "gram staged": 0.8, "triangle": 1.4,
    "pmrl": 1.7, "pmrl+latent": 3.8, "pmrl staged": 0.0, "ideal": 8.4,
}  # fmt: skip
ABOUT = "linear heads trained with this objective on every row, whatever it has"


def row(method: str = "pmrl", value: float = 1.0, seed: int = 0, **more: Any) -> Row:
    """One measurement: the average R@1 of 50 items of the data set "d"."""
    place = {"dataset": "d", "method": method, "seed": seed, "task": "average", "metric": "R@1"}
    return place | {"value": value, "n": 50} | more


def results(*rows: Row, folder: str | Path = "r", **meta: Any) -> Results:
    """What is read of a results.json in that folder, with these rows and what is known of them."""
    return results_of({Path(folder) / "results.json": {"rows": list(rows), "meta": meta}})


def demo_like() -> dict[str, Any]:
    """Two settings, 15 methods (one of them ideal), three seeds, three modalities, and everything meta can hold."""
    names = ("image", "text", "speech")
    rng = np.random.default_rng(7)
    rows = [
        row
        for setting, base in (("two-source", 22.0), ("one-source", 16.5))
        for row in _rows(rng, "stamps", setting, list(LEVEL), names, 3, base, n=250)
    ]
    for rate in (0.1, 0.3, 0.5, 0.7):
        for method, level in LEVEL.items():
            for seed in range(3):
                value = 31 - 18 * rate**1.4 + level * rate + rng.normal(0, 0.3)
                row = _row("stamps", f"mcar {rate}", method, seed, "average", "R@1", value, 250)
                rows.append(row | {"rate": rate, "seconds": float(rng.uniform(1, 20))})
    meta = {
        "command": "calmrl demo --out demo-out",
        "config": {"kind": "demo", "datasets": ["stamps"], "seeds": [0, 1, 2], "epochs": 30, "batch": 64},
        "version": "0.1.0",
        "datasets": {"stamps": {"rows": 1200, "modalities": dict.fromkeys(names, 512), "source": "museum photographs"}},
        "settings": {
            "two-source": "20 % of the rows are complete, the others come from two collections of pairs",
            "one-source": "20 % of the rows are complete, all others have image and text",
        },
        "methods": {m: {"about": ABOUT, "ours": m.startswith(("cal", "clo")), "ideal": m == "ideal"} for m in LEVEL},
        "patterns": {
            "two-source": [
                {"has": ["image", "text", "speech"], "rows": 190},
                {"has": ["image", "text"], "rows": 380},
                {"has": ["text", "speech"], "rows": 380},
            ],
            "one-source": [
                {"has": ["image", "text", "speech"], "rows": 190},
                {"has": ["image", "text"], "rows": 760},
            ],
        },
        "training": {
            "two-source": {"rows": 950, "missing": 0.2667, "complete": 0.2, "pairs": 0.4667, "rarest": 190},
            "one-source": {"rows": 950, "missing": 0.2667, "complete": 0.2, "pairs": 0.4667, "rarest": 190},
        },
        "curves": [
            {
                "setting": setting,
                "method": method,
                "seed": seed,
                "step": step,
                "loss": 4 * np.exp(-step / 120) + rng.normal(0, 0.03) + (1 if method.startswith("gram") else 0),
                "val": 20 + level - 15 * np.exp(-step / 90) + rng.normal(0, 0.3),
            }
            for setting in ("two-source", "one-source")
            for method, level in LEVEL.items()
            if method not in ("ideal", "closed-form")
            for seed in range(3)
            for step in range(0, 400, 20)
        ],
        "maps": {m: _map(rng, names, 120, gap) for m, gap in (("calmrl", 0.3), ("contrastive", 1.5), ("pmrl", 2.5))},
        "neighbours": [
            {
                "method": method,
                "task": "text->image",
                "query": query,
                "rank": rank,
                "found": [
                    {"caption": f"a stamp of {place}, series {i}", "id": i, "own": i + 1 == rank}
                    for i, place in enumerate(("Berne", "Lausanne", "Chur", "Basle", "Geneva"))
                ],
            }
            for query in ("blue stamp with a mountain", "portrait of a woman, red, 20 cents", "letter with a horse")
            for method, rank in (("calmrl", 1), ("contrastive", 3), ("pmrl", 12))
        ],
    }
    return {"rows": rows, "meta": meta}


def six_modalities() -> dict[str, Any]:
    """One setting, 12 methods, 3 seeds, 30 directions."""
    names = ("image", "text", "speech", "depth", "thermal", "touch")
    rng = np.random.default_rng(11)
    methods = [m for m in LEVEL if m not in ("gram staged", "pmrl staged", "contrastive staged")]
    rows = _rows(rng, "world", "mcar 0.5", methods, names, 3, 41.0, n=1000)
    present = rng.random((4000, 6)) < 0.5
    present[~present.any(axis=1), 0] = True
    kinds, counts = np.unique(present, axis=0, return_counts=True)
    found = [
        {"has": [name for name, here in zip(names, kind, strict=True) if here], "rows": int(count)}
        for kind, count in zip(kinds, counts, strict=True)
    ]
    meta = {
        "command": "calmrl compare world.yaml --methods all --seeds 3 --out world-out",
        "config": {"kind": "compare", "dataset": {"name": "world", "modalities": 6, "rows": 6000}, "seeds": 3},
        "datasets": {"world": {"rows": 6000, "modalities": dict.fromkeys(names, 32), "source": "generated"}},
        "settings": {"mcar 0.5": "half of all blocks are missing, independently of everything"},
        "methods": {m: {"about": ABOUT, "ideal": m == "ideal"} for m in methods},
        "patterns": {"mcar 0.5": found},
        "maps": {m: _map(rng, names, 80, gap) for m, gap in (("calmrl", 0.2), ("vast", 2.0))},
    }
    return {"rows": rows, "meta": meta}


def _rows(
    rng: np.random.Generator, dataset: str, setting: str, methods: list[str], names: tuple[str, ...], seeds: int,
    base: float, n: int,
) -> list[Row]:  # fmt: skip
    directions = [f"{a}->{b}" for a, b in permutations(names, 2)]
    shift = dict(zip(directions, rng.normal(0, 6, len(directions)), strict=True))
    rows: list[Row] = []
    for method in methods:
        for seed in range(seeds):
            add = [dataset, setting, method, seed]
            luck = rng.normal(0, 0.4)
            for task, value in {"average": 0.0, **shift}.items():
                r1 = max(base + LEVEL[method] + value + luck + (0 if task == "average" else rng.normal(0, 1)), 0.5)
                for metric, scale in (("R@1", 1), ("R@5", 1.9), ("R@10", 2.3)):
                    rows.append(_row(*add, task, metric, min(r1 * scale, 99.0), n))
                rows.append(_row(*add, task, "MedR", float(np.ceil(150 / r1)), n))
            for kind, more in (("linear", 30), ("knn", 24), ("linear without image", 12)):
                value = base + more + LEVEL[method] + luck
                rows.append(_row(*add, f"classification {kind}", "accuracy", value, n))
                rows.append(_row(*add, f"classification {kind}", "macro-F1", value - 3 + rng.normal(0, 0.4), n))
            for pool, less in (("raw", 9), ("centred", 5), ("anchor", 3), ("imputed", 1)):
                rows.append(_row(*add, f"mixed-pool {pool}", "R@1", base + LEVEL[method] - less + luck, n))
            for pair in ("|".join(pair) for pair in pairwise(names)):
                rows.append(_row(*add, pair, "modality_gap", abs(rng.normal(0.5, 0.1)), n))
            if method in ("calmrl", "closed-form", "calmrl-printed", "pmrl+latent"):
                worse = 0.05 if method != "calmrl" else 0.0
                for direction in directions:
                    error = 0.55 + worse + shift[direction] / 80 + rng.normal(0, 0.01)
                    rows.append(_row(*add, direction, "nmse", error, n))
                    rows.append(_row(*add, direction, "mse", error * 0.0021, n))
                    rows.append(_row(*add, direction, "mse_random", 0.0041 + rng.normal(0, 0.00003), n))
                for level in (50, 80, 90, 95):
                    rows.append(_row(*add, str(level), "coverage", level - 20 * worse + rng.normal(0, 0.8), n))
            for task, value in (("observed", 0.42), ("calibrated", 0.31 - LEVEL[method] / 90)):
                rows.append(_row(*add, task, "anchor_shift", value + rng.normal(0, 0.01), n))
                rows.append(_row(*add, task, "anchor_shift_low", value * 0.55, n))
                rows.append(_row(*add, task, "anchor_shift_high", min(value * 2.2, 2.0), n))
    return rows


def _row(dataset: str, setting: str, method: str, seed: int, task: str, metric: str, value: float, n: int) -> Row:
    return {"dataset": dataset, "setting": setting, "method": method, "seed": seed, "task": task, "metric": metric,
            "value": float(value), "n": n}  # fmt: skip


def _map(rng: np.random.Generator, names: tuple[str, ...], items: int, gap: float) -> dict[str, list[Any]]:
    centre = rng.normal(0, 1, (items, 2))
    apart = gap * rng.normal(0, 1, (len(names), 2))
    flat = (centre[None] + apart[:, None] + rng.normal(0, 0.15, (len(names), items, 2))).reshape(-1, 2)
    return {
        "x": flat[:, 0].tolist(),
        "y": flat[:, 1].tolist(),
        "modality": [name for name in names for _ in range(items)],
        "item": list(range(items)) * len(names),
    }
