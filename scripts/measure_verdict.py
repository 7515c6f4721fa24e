"""Weak hits and "nothing close": what is promised of own queries, and what is measured of own and of foreign ones.

    python scripts/base_sources.py --work DIR
    python scripts/measure_verdict.py DIR                  three seeds, 50, 150 and 400 pairs

An index of so many pairs of a picture and its words, and of 300 further items of other concepts with one of them each. Own
queries are what those items lack: how often is the item that is meant called weak? Foreign queries are words and pictures of
another collection with other captions, and words of random letters: how often is something called close? Of emoji, keywords
also ask for the pairs, which have a name and a picture. The aligner tries three settings, to save time.
"""

from __future__ import annotations

import argparse
import string
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from build_base import read

from calmrl import Aligner, Index
from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.encoders.encoder_set import EncoderSet
from calmrl.search.levels import ERROR

PAIRS = (50, 150, 400)
FOREIGN = {"stamps": "clipart", "emoji": "stamps", "clipart": "emoji"}
ASKED = 150  # items that lack words, and as many that lack a picture
QUERIES = 150  # foreign ones


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("features", type=Path, help="folder that scripts/base_sources.py has written")
    parser.add_argument("--only", action="append", choices=tuple(FOREIGN))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, action="append", help="only with so many pairs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = {name: _concepts(read(options.features / f"{name}.npz")) for name in FOREIGN}
    print(f"own items called weak, promised {100 * ERROR:.0f} %; foreign queries that find something close, in %")
    heads = ("collection", "pairs", "words, own", "foreign", "nonsense", "pictures, own", "foreign", "keywords, own")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in options.only or FOREIGN:
        for pairs in options.pairs or PAIRS:
            found = [measured(rows[name], rows[FOREIGN[name]], pairs, seed) for seed in range(options.seeds)]
            cells = [_mean_and_spread([one[key] for one in found]) for key in found[0]]
            print(f"| {name} | {pairs} | {' | '.join(cells)} |", flush=True)


def _concepts(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One row of each concept that has words and a picture."""
    whole = np.flatnonzero(~np.isnan(rows["image"]).any(1) & ~np.isnan(rows["text"]).any(1))
    first = whole[np.sort(np.unique(rows["group"][whole], return_index=True)[1])]
    return {name: values[first] for name, values in rows.items()}


def measured(own: dict[str, np.ndarray], other: dict[str, np.ndarray], pairs: int, seed: int) -> dict[str, float]:
    """Shares in percent for one seed."""
    random = np.random.default_rng(seed)
    rows = random.permutation(len(own["image"]))[: pairs + 2 * ASKED]
    z = {name: own[name][rows].astype(np.float32) for name in ("image", "text")}
    asked = {"text": np.arange(pairs, pairs + ASKED), "image": np.arange(pairs + ASKED, len(rows))}
    for name, lacking in asked.items():
        z[name][lacking] = np.nan
    present = np.stack([~np.isnan(values).any(1) for values in z.values()], axis=1)
    made = FeatureSet(z, present, meta_table(len(rows), ids=[f"item {i}" for i in range(len(rows))]), name="items")
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(made, Path(folder) / "ix", model=Aligner(candidates=3, hubs="auto"), base=None)
        out: dict[str, float] = {}
        strange = np.flatnonzero(~np.isin(other["caption"], own["caption"]))
        for name, lacking in asked.items():
            meant = [_weak(index, name, own[name][rows[i]], i) for i in lacking]
            queries = other[name][random.permutation(strange)[:QUERIES]]
            out |= {name: np.mean(meant), f"foreign {name}": _close(index, name, queries)}
            if name == "text":
                out["nonsense"] = _close(index, name, _nonsense())
        keywords = own.get("text2", np.full_like(own["text"], np.nan))[rows[:pairs]]
        said = np.flatnonzero(~np.isnan(keywords).any(1))[:ASKED]
        out["keywords"] = np.mean([_weak(index, "text", keywords[i], i) for i in said]) if len(said) else np.nan
    return {key: 100 * float(value) for key, value in out.items()}


def _weak(index: Index, name: str, value: np.ndarray, i: int) -> bool:
    (hit,) = index.search(**{name: value}, k=1, words=False, where=f"id = 'item {i}'")
    assert hit.weak is not None
    return hit.weak


def _close(index: Index, name: str, values: Any) -> float:
    """The share of queries for which something is called close."""
    return float(np.mean([not index.search(**{name: value}, words=False).nothing_close for value in values]))


def _nonsense() -> np.ndarray:
    """Two words of random letters each, encoded."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list(string.ascii_lowercase), random.integers(3, 9))) for _ in range(200)]
    cells = [{"text": f"{one} {other}"} for one, other in zip(words[::2], words[1::2], strict=True)]
    return np.asarray(EncoderSet({"text": "minilm"}).encode(cells)[0]["text"])


def _mean_and_spread(values: list[float]) -> str:
    return (
        ""
        if np.isnan(values).all()
        else f"{np.mean(values):.0f} ± {np.std(values, ddof=1 if len(values) > 1 else 0):.0f}"
    )


if __name__ == "__main__":
    main()
