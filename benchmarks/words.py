"""Pictures without any word are found by words: emoji of which the names and keywords of 70 % were hidden.

For each of three seeds of hiding an `Aligner` is fitted on all emoji with what was left of them; groups of siblings share a
fold, nothing is refined. The queries are the true names of the emoji without words, and the gallery is all emoji. Three ways:

- "hidden": each item is placed by what is left of it, as in an index: two pictures, and words where they were not hidden.
- "hidden, pictures only": the same aligner, but all items are placed by their pictures alone.
- "nothing hidden": an aligner that was fitted with all words; all items are placed by their pictures alone. It has seen
  the name of each query with its own pictures, so it is a bound on what hiding costs, not a result on new items.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from calmrl.aligner import Aligner
from calmrl.data.features.feature_set import FeatureSet
from calmrl.metrics import retrieval
from calmrl.workflows.demo import HIDDEN, SEEN, emoji_without_names

SEEDS = (0, 1, 2)
WAYS = ("hidden", "hidden, pictures only", "nothing hidden")


def features(rate: float, seed: int) -> tuple[FeatureSet, np.ndarray]:
    """(the emoji with the words of a share hidden, which rows those are)."""
    source, hidden = emoji_without_names(rate, seed)
    assert source.features is not None
    return source.features, hidden


def fit(data: FeatureSet) -> Aligner:
    return Aligner(refine="never", random_state=0).fit(data, groups=list(data.column("group")))


def finds(aligner: Aligner, data: FeatureSet, names: np.ndarray, own: np.ndarray, pictures: bool) -> dict[str, Any]:
    """R@1 and R@10 of names (n, d) that belong to the rows `own`, among all rows of `data`."""
    seen = np.array([name in SEEN for name in data.names])
    present = np.asarray(data.present) & (seen if pictures else True)
    gallery = aligner.embed({name: np.asarray(values) for name, values in data.z.items()}, present)
    return retrieval(aligner.embed({"text": names}), gallery, own, np.arange(len(data)), ks=(1, 10))


def run() -> list[dict[str, Any]]:
    whole, _ = features(0.0, 0)
    complete = fit(whole)
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    seconds = []
    for seed in SEEDS:
        data, hidden = features(HIDDEN, seed)
        own = np.flatnonzero(hidden & np.asarray(whole.present)[:, whole.names.index("text")])
        names = np.asarray(whole.z["text"])[own]
        begun = time.perf_counter()
        aligner = fit(data)
        seconds.append(time.perf_counter() - begun)
        results["hidden"].append(finds(aligner, data, names, own, pictures=False))
        results["hidden, pictures only"].append(finds(aligner, data, names, own, pictures=True))
        results["nothing hidden"].append(finds(complete, whole, names, own, pictures=True))
    return [row(way, results[way], len(whole), float(np.mean(seconds))) for way in WAYS]


def row(way: str, seeds: list[dict[str, Any]], items: int, seconds: float) -> dict[str, Any]:
    """One way; the ratio is R@10 over that of chance."""
    chance = 1000 / items
    first, ten = ([each[k] for each in seeds] for k in ("R@1", "R@10"))
    queries = ", ".join(str(each["n"]) for each in seeds)
    return {
        "case": f"R@10 over chance, {way}",
        "ours_s": seconds,
        "theirs_s": None,
        "ratio": float(np.mean(ten)) / chance,
        "target": "> 1" if way == WAYS[0] else "for comparison",
        "note": f"R@1 {np.mean(first):.1f} % ({_each(first)}), R@10 {np.mean(ten):.1f} % ({_each(ten)}); "
        f"chance {chance / 10:.2f} and {chance:.2f} %; {queries} queries among {items}",
    }


def _each(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)
