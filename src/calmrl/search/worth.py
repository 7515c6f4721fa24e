"""What each modality of a collection is worth: which find each other, which are left out, and which files are repeated.

Of a held-out query, the share of the gallery behind its own item is 1/2 on average by chance, and 1 at best. A modality is at
chance where that share, on average over all directions to and from it, is within two standard errors of 1/2 and below USEFUL
even two standard errors higher: with few pairs nothing is called useless. It is left out of the space unless a base knows it,
for it would only add noise to what the others say.

Items that share a file are one item as far as held-out items go: both in one fold, or recall to expect is that of files already
seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.stats import binom

from calmrl._support.text import plural
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.expected import Evidence
from calmrl.search.collection import Collection
from calmrl.search.levels import ERROR, unit

USEFUL = 0.6  # of the gallery behind the own item
GRADES = ((0.9, "find each other well"), (0.75, "find each other fairly well"), (0.0, "hardly find each other"))
FILES = ("image", "audio")  # kinds whose repetition says nothing about items; the same caption may be meant twice
SURE = 0.01  # probability at which so many unlike items would come together by chance
AT_CHANCE = "held-out items neither find it nor are found by it better than by chance"


def behind(evidence: Evidence) -> np.ndarray:
    """The share of the gallery behind the own item of each query, (n,)."""
    return 1 - (evidence.ranks - 1) / np.maximum(1, evidence.gallery - 1)


def at_chance(aligner: Aligner) -> list[str]:
    """Modalities that have nothing to do with the others, as far as held-out items show, and that no base knows."""
    known = {name for base in aligner.base_ for name in base.names}
    out = []
    for name in aligner.names_:
        parts = [behind(one) for key, one in aligner.evidence_.items() if name in key.split("->")]
        if not parts or name in known:
            continue
        mean = float(np.mean([part.mean() for part in parts]))
        error = 2 / math.sqrt(12 * max(len(part) for part in parts))  # twice that of uniform shares
        if mean < 0.5 + error and max(mean, 0.5) + error < USEFUL:
            out.append(name)
    return out


def in_short(aligner: Aligner | None, why: Mapping[str, str | None]) -> str | None:
    """One sentence: with which other each modality goes best, and which are unrelated to the rest."""
    pairs: dict[tuple[str, ...], list[float]] = {}
    for key, one in ({} if aligner is None else aligner.evidence_).items():
        pairs.setdefault(tuple(sorted(key.split("->"))), []).append(float(behind(one).mean()))
    best = {}
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        pair = max((pair for pair in pairs if name in pair), key=lambda pair: np.mean(pairs[pair]))
        grade = next(word for least, word in GRADES if np.mean(pairs[pair]) >= least)
        best[pair] = f"{pair[0]} and {pair[1]} {grade}"
    unrelated = [f"{name} is unrelated to the rest" for name, reason in why.items() if reason == AT_CHANCE]
    return "; ".join([*best.values(), *unrelated]) or None


def with_repeats(collection: Collection, siblings: list[Any] | None) -> tuple[list[Any] | None, dict[str, list[int]]]:
    """(a label per item, the same where items share a picture or sound; modality -> [items, different files] if fewer)."""
    repeated: dict[str, list[int]] = {}
    shared = [(row, (type(label).__name__, str(label))) for row, label in enumerate(siblings or ())]
    for name in (name for name, kind in collection.kinds.items() if kind in FILES):
        prints = [item.fingerprints.get(name) for item in collection.records]
        held = [(row, (name, one[0])) for row, one in enumerate(prints) if one is not None]
        different = len({content for _, content in held})
        if different < len(held):
            repeated[name] = [len(held), different]
            shared += held
    if not repeated:
        return siblings, repeated
    number = {key: n for n, key in enumerate(dict.fromkeys(key for _, key in shared), start=len(collection))}
    ends = [row for row, _ in shared], [number[key] for _, key in shared]
    size = len(collection) + len(number)
    links = coo_matrix((np.ones(len(shared)), ends), shape=(size, size))
    return connected_components(links, directed=False)[1][: len(collection)].tolist(), repeated


def repeats_line(name: str, items: int, different: int) -> str:
    """For people."""
    return f"{name}: {plural(items, 'item')} with {different:,} different files; those of one file count as one in estimates"


def unlike_line(name: str, values: np.ndarray, sample: np.ndarray, level: float) -> str | None:
    """What to say where more of the added values are far from all others than ERROR of them would be; None where not."""
    if not len(values) or not len(sample):
        return None
    far = int(((unit(values) @ sample.T).max(axis=1) < level).sum())
    if far < 2 or binom.sf(far - 1, len(values), ERROR) > SURE:
        return None
    return (
        f"{name}: {far} of {len(values)} added are unlike all that was there; `refit=True` (--refit) fits the space again with "
        "them"
    )
