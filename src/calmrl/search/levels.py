"""How similar is close: levels below which a hit is weak, from the items themselves, with a rate of error that is kept.

A query of one value x of a modality a meets an item by what the item has besides a, its pattern D. Two numbers say whether the
item may be what was meant:

- s, the similarity of the query with the place of the item given D;
- c, the largest cosine of x with the values of a that items have: low for a query unlike everything here.

Both are measured for items that play the query: s in spaces fitted without them (`calmrl.aligner.held_out`), c without the item
itself and its siblings. With n such pairs and ranks from the bottom, pair i stands at r_i = min(rank of c_i, 4 rank of s_i):
where modalities share little, s is low for true pairs as for others, so that most of the error is left to c. The k-th smallest
r, k = floor(ERROR (n + 1)), is where both levels lie, so that at most k - 1 of the n are below either. New pairs of the same
sort are exchangeable with these and are called weak in about ERROR of all cases: split conformal prediction, in one group of
pairs for each a and D. With fewer than 1 / ERROR - 1 pairs there is no level. Where an item has nothing but a, c alone decides.

Conformal prediction for retrieval with missing modalities is from Any2Any (Li, Yang, Omama, Chinchali and Topcu,
arXiv:2411.10513), which makes similarities of different pairs of modalities comparable by it, to rank; here it says when to
believe a rank. Nothing is promised of queries for what is not there: one that is like the others passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from calmrl.aligner.base import MIN_PAIRS
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.held_out import without_folds
from calmrl.aligner.posterior import place_rows
from calmrl.search.collection import Collection
from calmrl.search.neighbours import BLOCK, hub_sample
from calmrl.search.sides import ASKED, RIVALS, Gallery, gains, pays

ERROR = 0.1  # share of what was really meant that is called weak
LESS = 4  # times fewer errors of similarities than of queries that are unlike everything
FOLDS = 5
MOST = 2400  # items that play the query
ROUNDING = 1e-5  # of cosines
JOIN = " + "
LEVELS, APART = "levels", "apart"  # of the layout: what `measured` gives


def key_of(modalities: Iterable[str], query: str) -> str:
    """The pattern D of an item, for a query of this modality: "image + sound"; empty where it has nothing else."""
    return JOIN.join(sorted(name for name in modalities if name != query))


def group_numbers(siblings: Sequence[Any] | None, count: int) -> np.ndarray:
    """A number per item, the same for siblings; without labels of them every item has its own."""
    if siblings is None:
        return np.arange(count)
    return np.unique([f"{type(label).__name__}:{label}" for label in siblings], return_inverse=True)[1]


def measured(
    aligner: Aligner | None, collection: Collection, siblings: Sequence[Any] | None, fitted: bool
) -> dict[str, Any]:
    """What items say of queries, for the layout.

    "levels": modality of the query -> pattern D -> {"similarity" (None where c alone decides), "nearest", "n"}. "apart":
    modalities of queries that rank items which share the modality and items which do not each by what is usual among them.
    `fitted` says that the aligner was fitted on these items; of another one it is not known what it has seen.
    """
    groups = group_numbers(siblings, len(collection))
    drawn = np.random.default_rng(0).permutation(len(collection))[:MOST]
    names, present = list(collection.z), np.asarray(collection.present)
    levels: dict[str, Any] = {}
    nearest = {}
    for j, name in enumerate(names):
        rows = np.flatnonzero(present[:, j])
        kept = rows[hub_sample(len(rows))]
        asking = drawn[present[drawn, j]]
        nearest[name] = np.full(len(collection), np.nan)
        nearest[name][asking] = nearest_of(collection.z[name], asking, kept, groups)
        values = nearest[name][asking]
        if level := _levels(values[np.isfinite(values)]):
            levels[name] = {"": level}
    apart: list[str] = []
    if aligner is not None and fitted:
        pairs, earlier = _held_out(aligner, collection, drawn, groups)
        for (name, key), (rows, similar) in pairs.items():
            there = np.isfinite(nearest[name][rows])
            if name in levels and (level := _levels(nearest[name][rows][there], similar[there])):
                levels[name][key] = level
        if aligner.base_:
            apart = [name for name in names if name in aligner.widths_ and (name not in earlier or pays(earlier[name]))]
    return {LEVELS: levels, APART: apart}


def nearest_of(values: np.ndarray, rows: np.ndarray, kept: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The largest cosine of each row with those that are kept, (n,), without itself and its siblings; NaN if none is left."""
    gallery = unit(np.asarray(values[kept]))
    out = np.full(len(rows), np.nan)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        cosines = unit(np.asarray(values[block])) @ gallery.T
        cosines[groups[block][:, None] == groups[kept]] = -np.inf
        out[start : start + BLOCK] = cosines.max(axis=1, initial=-np.inf)
    return np.where(np.isfinite(out), out, np.nan)


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows (n, width) of unit length, float32; zero where they are."""
    rows = np.asarray(rows, np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(length > 0, length, 1.0)).astype(np.float32)


def _held_out(
    aligner: Aligner, collection: Collection, drawn: np.ndarray, groups: np.ndarray
) -> tuple[dict[tuple[str, str], tuple[np.ndarray, np.ndarray]], dict[str, np.ndarray]]:
    """What items find that play the query, in spaces that were fitted without them.

    (modality of the query, pattern) -> (rows, similarity of each with itself); modality -> gains of ranking side by side.
    """
    names = sorted(name for name in collection.z if name in aligner.widths_)
    observed = np.asarray(collection.present)[:, [list(collection.z).index(name) for name in names]]
    rows = np.sort(drawn[observed[drawn].sum(axis=1) > 1])
    if len(rows) < MIN_PAIRS or len(np.unique(groups[rows])) < FOLDS:
        return {}, {}
    present = observed[rows]
    z = {name: np.asarray(collection.z[name][rows]) for name in names}
    own = [names.index(name) for name in aligner.names_]
    patterns = [tuple(np.flatnonzero(pattern)) for pattern in np.unique(observed, axis=0)]
    asked = {(a, tuple(m for m in pattern if m != a)) for a, pattern in product(range(len(names)), patterns)}
    found: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = {}
    earlier: dict[str, list[np.ndarray]] = {}
    some = np.flatnonzero(observed.any(axis=1))
    some = np.random.default_rng(0).permutation(some)[:RIVALS]
    rivals = Gallery({name: np.asarray(collection.z[name][some]) for name in names}, observed[some], groups[some])
    for twin, held in without_folds(
        aligner, {names[m]: z[names[m]] for m in own}, present[:, own], groups[rows], FOLDS
    ):
        for a, others in sorted(pair for pair in asked if pair[1]):
            at = held[present[held][:, [a, *others]].all(axis=1)]
            if not len(at):
                continue
            query, item = (_placed(twin, z, at, [names[m] for m in some]) for some in ((a,), others))
            similar = (query * item).sum(axis=1)
            if names[a] in twin.references_:
                similar = similar - twin.hub_levels(item)[names[a]] / 2
            key = key_of([names[m] for m in others], names[a])
            found.setdefault((names[a], key), []).append((rows[at], similar))
        if not aligner.base_:
            continue
        places = rivals.places(twin)
        for a, name in enumerate(names):
            at = held[present[held, a]][:ASKED]
            asked_for = Gallery({other: values[at] for other, values in z.items()}, present[at], groups[rows[at]])
            earlier.setdefault(name, []).append(gains(twin, name, asked_for, rivals, places))
    pairs = {
        pair: (np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts]))
        for pair, parts in found.items()
    }
    return pairs, {name: np.concatenate(parts) for name, parts in earlier.items() if sum(map(len, parts))}


def _placed(aligner: Aligner, z: Mapping[str, np.ndarray], rows: np.ndarray, names: list[str]) -> np.ndarray:
    return place_rows(aligner, {name: z[name][rows] for name in names}, np.ones((len(rows), len(names)), bool))


def _levels(nearest: np.ndarray, similar: np.ndarray | None = None) -> dict[str, Any] | None:
    """{"similarity", "nearest", "n"} below which ERROR of such pairs lie in one or the other; None for too few."""
    n = len(nearest)
    k = int(ERROR * (n + 1) + 1e-9)
    if k < 1:
        return None
    kinds = [nearest] if similar is None else [nearest, similar]
    factors = [1, LESS][: len(kinds)]
    ranks = [times * (1 + np.searchsorted(np.sort(one), one)) for times, one in zip(factors, kinds, strict=True)]
    rank = int(np.sort(np.min(ranks, axis=0))[k - 1])
    at = [float(np.sort(one)[-(-rank // times) - 1]) - ROUNDING for times, one in zip(factors, kinds, strict=True)]
    return {"similarity": None if similar is None else at[1], "nearest": at[0], "n": n}


def is_weak(
    levels: Mapping[str, Any], query: str, item: Iterable[str], similarity: float, nearest: float
) -> bool | None:
    """The verdict on a hit; None where there is no level for queries of this modality."""
    of = levels.get(query)
    if not of:
        return None
    level = of.get(key_of(item, query)) or of[""]
    return nearest < level["nearest"] or (level["similarity"] is not None and similarity < level["similarity"])
