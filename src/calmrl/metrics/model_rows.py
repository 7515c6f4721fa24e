"""Everything that is measured on the test rows of one trained model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np
import torch
from sklearn.manifold import TSNE

from calmrl.alignment import CalibratedAlignment
from calmrl.metrics.measures import Row, anchor_shift_rows, coverage, imputation_error, modality_gap, row, uniformity
from calmrl.metrics.pool import mixed_pool
from calmrl.metrics.retrieve import retrieval
from calmrl.metrics.scores import scored_retrieval

KS = (1, 5, 10)
METRICS = (*(f"R@{k}" for k in KS), "MedR")
Vectors = dict[str, torch.Tensor]


def retrieval_rows(z: Vectors, present: torch.Tensor) -> tuple[list[Row], dict[str, list[float]]]:
    """(R@k and median rank for every direction and on average, whether each query was a hit at 1 per direction)."""
    rows: list[Row] = []
    hits: dict[str, list[float]] = {}
    for a, b in permutations(range(len(z)), 2):
        names = list(z)
        both = present[:, a] & present[:, b]
        if both.sum() < 2:
            continue
        task = f"{names[a]}->{names[b]}"
        found = retrieval(z[names[a]][both], z[names[b]][both], ks=KS, per_query=True)
        rows += [row(task, metric, found[metric], found["n"]) for metric in METRICS]
        hits[task] = [float(hit) for hit in found["hits"]["R@1"]]
    for metric in METRICS:
        mine = [one for one in rows if one["metric"] == metric]
        rows.append(
            row("average", metric, float(np.mean([one["value"] for one in mine])), sum(one["n"] for one in mine))
        )
    return rows, hits


def reranked_rows(matching: Any, z: Vectors, present: torch.Tensor, top: int = 50) -> list[Row]:
    """Retrieval of items by their anchor modality, before and after the matching head sorted the `top` best again."""
    complete = present.all(1)
    asks = matching.anchor
    if complete.sum() < 2:
        return []
    queries = z[asks][complete]
    items = {name: rows[complete] for name, rows in z.items() if name != asks}
    found = []
    for task, head in ((f"{asks}->all", None), (f"{asks}->all re-ranked", matching)):
        scores = scored_retrieval(queries, items, ks=KS, matching=head, top=top)
        found += [row(task, metric, scores[metric], scores["n"]) for metric in METRICS]
    return found


def calibration_rows(
    align: CalibratedAlignment, z: Vectors, present: torch.Tensor, measures: Sequence[str]
) -> list[Row]:
    """Error and honesty of the imputed vectors, and the anchor shift before and after, on complete test rows."""
    complete = present.all(1)
    if complete.sum() < 2:
        return []
    whole = {name: rows[complete] for name, rows in z.items()}
    rows: list[Row] = []
    if "imputation" in measures:
        rows += imputation_error(align.imputer, whole)
        hidden = _one_each(int(complete.sum()), len(z))
        rows += coverage(align.imputer, whole, None, hidden)
    if "shift" in measures and len(z) > 2:
        left = ~_one_each(int(complete.sum()), len(z))
        rows += anchor_shift_rows(whole, left, align.complete(whole, left), renormalize=False)
    return rows


def _one_each(n: int, k: int) -> torch.Tensor:
    """(n, k) bool: row i has True at column i mod k."""
    return torch.arange(k)[None, :] == (torch.arange(n) % k)[:, None]


def pool_rows(align: CalibratedAlignment | None, z: Vectors, present: torch.Tensor, seed: int) -> list[Row]:
    """One pool of test items that each lack some modality; every modality in turn asks for its items by the others."""
    names, k = list(z), len(z)
    complete = present.all(1)
    if k < 3 or complete.sum() < 2:
        return []
    whole = {name: rows[complete] for name, rows in z.items()}
    generator = np.random.default_rng(seed)
    found: dict[str, list[dict[str, Any]]] = {}
    for j, asks in enumerate(names):
        left = np.ones((int(complete.sum()), k), dtype=bool)
        left[:, j] = False
        others = [i for i in range(k) if i != j]
        left[np.arange(len(left)), generator.choice(others, len(left))] = False  # one of the others is missing as well
        mask = torch.from_numpy(left)
        for scoring in ("raw", "centred", "anchor"):
            found.setdefault(scoring, []).append(mixed_pool(whole[asks], whole, mask, scoring=scoring))
        if align is not None:
            filled = align.complete(whole, mask)
            found.setdefault("imputed", []).append(
                mixed_pool(whole[asks], whole, mask, scoring="imputed", completed=filled)
            )
            if hasattr(align.imputer, "embed"):
                asked = {asks: whole[asks]}
                scored = mixed_pool(asked, whole, mask, scoring="posterior", completed=align.imputer)
                found.setdefault("posterior", []).append(scored)
    return [
        row(
            f"mixed-pool {scoring}",
            metric,
            float(np.mean([one[metric] for one in each])),
            sum(one["n"] for one in each),
        )
        for scoring, each in found.items()
        for metric in METRICS
    ]


def geometry_rows(z: Vectors, present: torch.Tensor) -> list[Row]:
    """Modality gap and uniformity."""
    return [*modality_gap(z, present), *uniformity(z, present)]


def picture(z: Vectors, most: int = 120, seed: int = 0) -> dict[str, list[Any]]:
    """t-SNE of the test vectors of all modalities together; `item` says which belong together."""
    names = list(z)
    n = min(most, len(z[names[0]]))
    stacked = torch.cat([z[name][:n] for name in names]).numpy()
    places = TSNE(init="pca", perplexity=min(30, max(2, len(stacked) // 4)), random_state=seed).fit_transform(stacked)
    return {
        "x": [round(float(x), 2) for x in places[:, 0]],
        "y": [round(float(y), 2) for y in places[:, 1]],
        "modality": [name for name in names for _ in range(n)],
        "item": [i for _ in names for i in range(n)],
    }


def neighbours(
    z: Vectors, captions: Sequence[str], ids: Sequence[str], asks: str, gives: str, count: int = 5
) -> list[Any]:
    """The nearest items of a few queries, evenly spaced over the test rows."""
    scores = z[asks] @ z[gives].T
    shown = []
    for q in np.linspace(0, len(scores) - 1, min(count, len(scores))).round().astype(int):
        order = scores[q].argsort(descending=True)
        rank = int((order == q).nonzero()[0, 0]) + 1
        found = [{"caption": captions[i], "id": ids[i], "own": bool(i == q)} for i in order[:3].tolist()]
        shown.append({"task": f"{asks}->{gives}", "query": captions[q], "rank": rank, "found": found})
    return shown
