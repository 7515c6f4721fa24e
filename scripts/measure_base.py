"""A base beside a collection's own pairs: R@1 by number of pairs, each collection with a base that has not seen it.

    python scripts/base_sources.py --work DIR
    python scripts/measure_base.py DIR                     three seeds, gallery of 250, 0 to 400 pairs
    python scripts/measure_base.py DIR --split item        siblings of a concept may be on both sides, as random rows are

Own rows: so many pairs, and the rest of the collection with one modality each. Test items are of concepts that no own row shows
(--split concept). Everything is chosen without them.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from build_base import COLLECTIONS as SOURCES
from build_base import TESTED, Rows, make, one_per_concept, read

from calmrl import Aligner
from calmrl.aligner import found_in

PAIRS = (0, 25, 50, 150, 400)
COLLECTIONS = ("stamps", "emoji", "clipart")
GALLERY = 250
DIRECTIONS = ("image->text", "text->image")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("features", type=Path, help="folder that scripts/base_sources.py has written")
    parser.add_argument("--only", action="append", choices=COLLECTIONS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pairs", type=int, action="append", help="only with so many pairs")
    parser.add_argument("--split", choices=("concept", "item"), default="concept")
    parser.add_argument("--text", choices=("text", "multilingual"), default="text", help="encoder of the words")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sources = {path.stem: read(path) for path in sorted(options.features.glob("*.npz"))}
    print(
        "| collection | pairs | base | own | side by side | share of own | expected covers | s |\n" + "|---" * 8 + "|"
    )
    for name in options.only or COLLECTIONS:
        base = make(sources, SOURCES, without=name)
        others = [source for source in SOURCES if source != name]
        base.elsewhere_ = {
            other: found_in(make(sources, others, without=other), one_per_concept(sources[other]))
            for other in TESTED
            if other != name
        }
        rows = {"image": sources[name]["image"], "text": sources[name][options.text]}
        held = ~np.isnan(rows["image"]).any(1) & ~np.isnan(rows["text"]).any(1)
        if "glyph" in sources[name]:
            held &= ~sources[name]["glyph"].astype(bool)
        rows = {modality: values[held].astype(np.float32) for modality, values in rows.items()}
        if options.text != "text":
            base = renamed(base, options.text)
        concepts = sources[name]["group"][held]
        for pairs in options.pairs or PAIRS:
            line(
                name, pairs, [trial(rows, concepts, base, pairs, seed, options.split) for seed in range(options.seeds)]
            )


def renamed(base: Aligner, name: str) -> Aligner:
    """The base with another text encoder under the name `text`."""
    for number, part in enumerate(base.base_):
        names = {"text" if own == name else own: inner for own, inner in part.names.items() if own != "text"}
        base.base_[number] = replace(part, names=names)
    return base


def trial(rows: Rows, concepts: np.ndarray, base: Aligner, pairs: int, seed: int, split: str) -> dict:
    """R@1 of base, own and both on held-out items, both directions, and whether what was expected covers it."""
    test, train = divided(concepts, seed, split)
    z = {name: values[train].copy() for name, values in rows.items()}
    alone = np.arange(pairs, len(train))
    z["text"][alone[::2]], z["image"][alone[1::2]] = np.nan, np.nan
    groups = concepts[train] if split == "concept" else None
    new = {name: values[test] for name, values in rows.items()}
    began = time.perf_counter()
    both = Aligner(base=base).fit(z, groups=groups)
    seconds = time.perf_counter() - began
    unlinked = {name: values[alone] for name, values in z.items()}
    found = {
        "base": recalls(Aligner(base=base).fit(unlinked), new),
        "own": recalls(Aligner().fit(z, groups=groups), new) if pairs else [100 / GALLERY] * 2,
        "both": recalls(both, new),
    }
    expected = both.expected(GALLERY)
    covered = [
        expected[key]["low"] <= reached <= expected[key]["high"]
        for key, reached in zip(DIRECTIONS, found["both"], strict=True)
        if key in expected
    ]
    share = both.choice_["beside"].get("share", 0.0)
    return {**found, "covered": covered, "share": share, "seconds": seconds}


def divided(concepts: np.ndarray, seed: int, split: str) -> tuple[np.ndarray, np.ndarray]:
    """(items to test, rows to learn from): of different concepts, one item each; or any items."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(concepts))
    if split == "item":
        return order[:GALLERY], order[GALLERY:]
    _, first = np.unique(concepts[order], return_index=True)
    test = order[np.sort(first)[:GALLERY]]
    return test, order[~np.isin(concepts[order], concepts[test])]


def recalls(aligner: Aligner, new: Rows) -> list[float]:
    """R@1 in percent of both directions."""
    scores = aligner.embed({"image": new["image"]}) @ aligner.embed({"text": new["text"]}).T
    return [100 * float((one.argmax(1) == np.arange(len(one))).mean()) for one in (scores, scores.T)]


def line(name: str, pairs: int, trials: list[dict]) -> None:
    cells = []
    for row in ("base", "own", "both"):
        means = [np.mean(one[row]) for one in trials]
        cells.append(f"{np.mean(means):.1f} ± {np.std(means, ddof=1):.1f}" if len(means) > 1 else f"{means[0]:.1f}")
    covered = [hit for one in trials for hit in one["covered"]]
    share, seconds = np.mean([one["share"] for one in trials]), np.mean([one["seconds"] for one in trials])
    cells += [f"{share:.2f}", f"{sum(covered)} of {len(covered)}", f"{seconds:.0f}"]
    print(f"| {name} | {pairs} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
