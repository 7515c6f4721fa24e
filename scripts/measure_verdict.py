"""Close, perhaps, nothing close: what is promised of own and of foreign queries, and what is measured.

    python scripts/base_sources.py --work DIR
    python scripts/measure_verdict.py DIR                  three seeds, 50, 150 and 400 pairs

An index of so many pairs of a picture and its words, and of 200 further items of other concepts with one of them each. Own
queries are what those items lack: how often is the item that is meant called weak (promised: at most 10 %), or something called
close? Foreign queries are of items of the same collection that are not in the index: how often is something called close
(promised: at most 10 %)? Foreign to the promise are words and pictures of another collection with other captions, and words of
random letters: how often is something called close, or nothing? Of emoji, keywords also ask for the pairs, which have a name
and a picture. The aligner tries three settings, to save time.
"""

from __future__ import annotations

import argparse
import string
import tempfile
import warnings
from functools import cache
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
ASKED = 100  # items that lack words, and as many that lack a picture
QUERIES = 120  # foreign ones
COLUMNS = (
    "own: weak",
    "own: close",
    "foreign: close",
    "foreign: nothing close",
    "other: close",
    "other: nothing close",
    "nonsense: close",
    "nonsense: nothing close",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("features", type=Path, help="folder that scripts/base_sources.py has written")
    parser.add_argument("--only", action="append", choices=tuple(FOREIGN))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, action="append", help="only with so many pairs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = {name: _concepts(read(options.features / f"{name}.npz")) for name in FOREIGN}
    print(
        f"in %, promised at most {100 * ERROR:.0f}: own items called weak, and foreign queries that find something close"
    )
    heads = ("collection", "pairs", "asked with", *COLUMNS)
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name in options.only or FOREIGN:
        for pairs in options.pairs or PAIRS:
            found = [measured(rows[name], rows[FOREIGN[name]], pairs, seed) for seed in range(options.seeds)]
            for asked in found[0]:
                cells = [_mean_and_spread([one[asked].get(key, np.nan) for one in found]) for key in COLUMNS]
                print(f"| {name} | {pairs} | {asked} | {' | '.join(cells)} |", flush=True)


def _concepts(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One row of each concept that has words and a picture."""
    whole = np.flatnonzero(~np.isnan(rows["image"]).any(1) & ~np.isnan(rows["text"]).any(1))
    first = whole[np.sort(np.unique(rows["group"][whole], return_index=True)[1])]
    return {name: values[first] for name, values in rows.items()}


def measured(
    own: dict[str, np.ndarray], other: dict[str, np.ndarray], pairs: int, seed: int
) -> dict[str, dict[str, float]]:
    """What is asked with -> shares in percent, for one seed."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(own["image"]))
    rows, absent = np.split(order[: pairs + 2 * ASKED + QUERIES], [pairs + 2 * ASKED])
    z = {name: own[name][rows].astype(np.float32) for name in ("image", "text")}
    asked = {"text": np.arange(pairs, pairs + ASKED), "image": np.arange(pairs + ASKED, len(rows))}
    for name, lacking in asked.items():
        z[name][lacking] = np.nan
    present = np.stack([~np.isnan(values).any(1) for values in z.values()], axis=1)
    made = FeatureSet(z, present, meta_table(len(rows), ids=[f"item {i}" for i in range(len(rows))]), name="items")
    strange = random.permutation(np.flatnonzero(~np.isin(other["caption"], own["caption"])))[:QUERIES]
    with tempfile.TemporaryDirectory() as folder:
        index = Index.build(made, Path(folder) / "ix", model=Aligner(candidates=3, hubs="auto"), base=None)
        out = {}
        for name, lacking in asked.items():
            said = {"own": own[name][rows[lacking]], "foreign": own[name][absent], "other": other[name][strange]}
            said |= {"nonsense": _nonsense()} if name == "text" else {}
            found = {"own: weak": _weak(index, name, own[name][rows], lacking)}
            for whose, values in said.items():
                found |= {f"{whose}: {verdict}": share for verdict, share in _verdicts(index, name, values).items()}
            out["words" if name == "text" else "pictures"] = found
        keywords = own.get("text2", np.full_like(own["text"], np.nan))[rows[:pairs]]
        these = np.flatnonzero(~np.isnan(keywords).any(1))[:ASKED]
        if len(these):
            own_close = _verdicts(index, "text", keywords[these])["close"]
            out["keywords"] = {"own: weak": _weak(index, "text", keywords, these), "own: close": own_close}
    return {name: {key: 100 * float(value) for key, value in one.items()} for name, one in out.items()}


def _weak(index: Index, name: str, values: np.ndarray, meant: np.ndarray) -> float:
    """The share of queries whose own item is called weak."""
    return float(
        np.mean([index.search(**{name: values[i]}, k=1, words=False, where=f"id = 'item {i}'")[0].weak for i in meant])
    )


def _verdicts(index: Index, name: str, values: Any) -> dict[str, float]:
    """The shares of queries of which it is said that something is close, and that nothing is; NaN for no queries."""
    said = [index.search(**{name: value}, words=False).verdict for value in values]
    return {one: said.count(one) / len(said) if said else np.nan for one in ("close", "nothing close")}


@cache
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
