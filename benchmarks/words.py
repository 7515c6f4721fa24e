"""Pictures without any word are found by words: emoji of which the names and keywords of 70 % were hidden.

Queries are true names that no aligner has seen with their own pictures. Groups of siblings stay together wherever rows are
divided. All aligners have the settings that cross-validation chooses where 70 % are hidden (those of `calmrl demo`): only
what was hidden differs between them. Three seeds of hiding.

**New items.** A fifth of the items takes no part in fitting. Their names search among their pictures.

- "70 % hidden": of the other items, 70 % have no words.
- "nothing hidden", the ideal: all other items have their words.

**Items of the collection.** The names of the items without words search among all items, each placed by what is left of it, as
in an index: two pictures, and words where they were not hidden.

- "by cosine" and "corrected for hubs": `Index.search` as it is, and with `hubs=True`.
- "lacking words": with `lacking="text"`, only among the items without words.
- "lacking words, all other names": the hidden items are divided into three parts; names of each part search among the same
  items, in a space that was fitted with all names but these. The other two parts took part in fitting with their names, so that
  they fit better than the items asked for and get in their way: this is no bound, unlike the ideal for new items.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from calmrl.aligner import Aligner
from calmrl.data.features.feature_set import FeatureSet
from calmrl.metrics import retrieval
from calmrl.search.neighbours import hubness
from calmrl.workflows.demo import EMOJI, HIDDEN, NAMED, SEEN, emoji_without_names

SEEDS = tuple(range(int(os.environ.get("CALMRL_WORDS_SEEDS", "3"))))
KEPT_OUT = 0.2  # share of new items
PARTS = 3
KS = (1, 10)
Result = dict[str, Any]


class Emoji:
    """The emoji with all their words, and which rows lost them for a seed."""

    def __init__(self) -> None:
        opened, _ = emoji_without_names(0.0)
        assert opened.features is not None
        self.whole: FeatureSet = opened.features
        self.z = {name: np.asarray(values) for name, values in self.whole.z.items()}
        self.present = np.asarray(self.whole.present)
        self.words = np.array([name in NAMED for name in self.whole.names])
        self.groups = np.array([str(group) for group in self.whole.column("group")])
        self.has_name = self.present[:, self.whole.names.index("text")]

    def without_words(self, rows: np.ndarray) -> np.ndarray:
        """`present` with the words of some rows hidden."""
        return self.present & ~(rows[:, None] & self.words)

    def part_of_group(self, parts: int, seed: int) -> np.ndarray:
        """A number below `parts` per row, the same for siblings."""
        names, number = np.unique(self.groups, return_inverse=True)
        return np.random.default_rng([seed, parts]).permutation(len(names))[number] % parts

    def fit(self, present: np.ndarray, rows: np.ndarray | None = None) -> Aligner:
        """An aligner of these rows; of all by default."""
        kept = np.flatnonzero(present.any(axis=1) if rows is None else rows & present.any(axis=1))
        z = {name: values[kept] for name, values in self.z.items()}
        return Aligner(**EMOJI, random_state=0).fit(z, present[kept], groups=self.groups[kept].tolist())

    def named(self, aligner: Aligner, rows: np.ndarray) -> np.ndarray:
        """Names as queries, (n, L)."""
        return aligner.embed({"text": self.z["text"][rows]})

    def pictured(self) -> np.ndarray:
        """`present` with pictures alone."""
        return self.present & np.array([name in SEEN for name in self.whole.names])


def new_items(emoji: Emoji, seed: int) -> Iterator[tuple[str, Result]]:
    """Names search among pictures of items that took no part in fitting."""
    new = emoji.part_of_group(round(1 / KEPT_OUT), seed) == 0
    hidden = np.random.default_rng(seed).random(len(new)) < HIDDEN
    asked = np.flatnonzero(new & emoji.has_name & emoji.pictured().any(axis=1))
    for way, present in (("70 % hidden", emoji.without_words(hidden)), ("nothing hidden (ideal)", emoji.present)):
        aligner = emoji.fit(present, ~new)
        pictures = aligner.embed({name: emoji.z[name][asked] for name in emoji.z}, emoji.pictured()[asked])
        yield f"new items, {way}", retrieval(emoji.named(aligner, asked), pictures, ks=KS)


def own_items(emoji: Emoji, seed: int) -> Iterator[tuple[str, Result]]:
    """Names of the items without words search among all items."""
    hidden = np.random.default_rng(seed).random(len(emoji.present)) < HIDDEN
    present = emoji.without_words(hidden)
    asked = np.flatnonzero(hidden & emoji.has_name & present.any(axis=1))
    aligner = emoji.fit(present)
    queries, places = emoji.named(aligner, asked), aligner.embed(emoji.z, present)
    scores = queries @ places.T
    yield "in the collection, by cosine", of_scores(scores, asked)
    corrected = 2 * scores - hubness(places, places, own=True)
    yield "in the collection, corrected for hubs", of_scores(corrected, asked)
    yield "in the collection, lacking words", of_scores(scores, asked, hidden)
    others = all_other_names(emoji, hidden, asked, seed)
    yield "in the collection, lacking words, all other names", of_scores(others, asked, hidden)


def all_other_names(emoji: Emoji, hidden: np.ndarray, asked: np.ndarray, seed: int) -> np.ndarray:
    """Scores where each part of the hidden items asks in a space that was fitted with the names of the others."""
    part = emoji.part_of_group(PARTS, seed)
    scores = np.zeros((len(asked), len(hidden)))
    for number in range(PARTS):
        aligner = emoji.fit(emoji.without_words(hidden & (part == number)))
        mine = part[asked] == number
        places = aligner.embed(emoji.z, emoji.without_words(hidden))
        scores[mine] = emoji.named(aligner, asked[mine]) @ places.T
    return scores


def of_scores(scores: np.ndarray, own: np.ndarray, among: np.ndarray | None = None) -> Result:
    """R@1 and R@10 in percent of queries whose item is the column `own`, among some columns; a tie counts as a miss."""
    mine = scores[np.arange(len(own)), own][:, None]
    kept = scores if among is None else scores[:, among]
    rank = (kept >= mine).sum(axis=1)
    return {f"R@{k}": 100 * float((rank <= k).mean()) for k in KS} | {"n": len(own), "gallery": kept.shape[1]}


def run() -> list[dict[str, Any]]:
    emoji = Emoji()
    results: dict[str, list[Result]] = {}
    for seed in SEEDS:
        for case in (new_items, own_items):
            for way, result in case(emoji, seed):
                results.setdefault(way, []).append(result)
    return [row(way, seeds) for way, seeds in results.items()]


def row(way: str, seeds: list[Result]) -> dict[str, Any]:
    """One way; the ratio is R@10 over that of chance."""
    gallery = float(np.mean([each.get("gallery", each["n"]) for each in seeds]))
    chance = {k: 100 * k / gallery for k in KS}
    ten = float(np.mean([each["R@10"] for each in seeds]))
    queries = ", ".join(str(each["n"]) for each in seeds)
    return {
        "case": way,
        "ours_s": None,
        "theirs_s": None,
        "ratio": ten / chance[10],
        "target": "for comparison" if way.endswith(("(ideal)", "all other names")) else "> 1",
        "note": "; ".join(f"R@{k} {spread([each[f'R@{k}'] for each in seeds])} (chance {chance[k]:.2f})" for k in KS)
        + f"; {queries} queries among {gallery:.0f}; ratio of R@10 to chance",
    }


def spread(values: list[float]) -> str:
    """Mean and standard deviation over seeds, in percent."""
    return f"{np.mean(values):.1f} ± {np.std(values, ddof=1) if len(values) > 1 else 0.0:.1f} %"
