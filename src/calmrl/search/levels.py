"""How similar is close, and how little is weak: levels from the items themselves, with two rates of error that are kept.

A query of one value x of a modality a meets an item by what the item has. A hit is weak below lower levels, which items that
are meant seldom are, and close above an upper one, which hits of queries for what is not there seldom are. In between, it may
be what was meant or not. All levels are those of split conformal prediction: items play the query, in spaces fitted without
them (`calmrl.aligner.held_out`), and new queries of the same sort are exchangeable with them.

**Weak.** Two numbers say whether an item may be what was meant: s, the similarity of the query with the place of the item
given its pattern D, what it has besides a; and c, the largest cosine of x with the values of a that items have (without the
item itself and its siblings), low for a query unlike everything here. With n pairs and ranks from the bottom, pair i stands at
r_i = min(rank of c_i, 4 rank of s_i): where modalities share little, s is low for true pairs as for others, so that most of the
error is left to c. The k-th smallest r, k = floor(ERROR (n + 1)), is where both levels lie, so that at most k - 1 of the n are
below either. Where an item has nothing but a, c alone decides.

**Close.** The same items play queries for what is not there: they and their siblings are left out of the gallery. The largest
similarity that query i finds among the items of a pattern P (all that they have) has a rank t_iP from the top among those of
all queries, and the query stands at t_i = min over P of t_iP. Levels lie at the k-th smallest t, one for each P, so that at
most k - 1 of the n queries find anything above any of them. Of a large collection a random share f is looked through, with
k = floor(f ERROR (n + 1)): the whole is 1 / f such shares. A query that is compared within one modality finds c.

**Side by side.** Words are nearer to whatever has words than to the picture that they describe: a few captions would hide all
pictures without one. Ranked side by side, items that share a modality with the query and items that do not each stand as
high as their similarity is above what is usual among them, in standard deviations of the similarities there. It is done beside
a base, for queries of those modalities whose held-out items are found earlier by it, beyond noise, or where there are no pairs
to try it with. Where modalities meet as closely as each meets itself, it would only add noise; and in a space of its own, items
with a text lost about as much as the others gained.

With too few pairs for k >= 1 there is no level. Conformal prediction for retrieval with missing modalities is from Any2Any
(Li, Yang, Omama, Chinchali and Topcu, arXiv:2411.10513), which makes similarities of different pairs of modalities comparable
by it, to rank; here it says when to believe a rank. Queries of another sort than the items' own are not exchangeable with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from calmrl.aligner.base import MIN_PAIRS
from calmrl.aligner.estimator import Aligner
from calmrl.aligner.held_out import without_folds
from calmrl.aligner.posterior import place_rows
from calmrl.search.collection import Collection
from calmrl.search.neighbours import BLOCK, hub_sample

SAMPLE = 1000  # items by which it is known which similarity to a query is usual
RIVALS = 500  # items among which held-out ones are looked for
ASKED = 100  # of these, for each modality and fold
FEW = 10  # values whose variance is half known
NOISE = 2.0  # standard errors beyond which a gain is one


@dataclass(frozen=True)
class Side:
    """Items that fulfil some conditions of SQL; mean and standard deviation of their similarities to a query."""

    conditions: list[str]
    usual: float
    spread: float

    def above(self, similarities: np.ndarray) -> np.ndarray:
        """How far they are above what is usual here."""
        return (similarities - self.usual) / self.spread


EVERYTHING = Side([], 0.0, 1.0)


def both_sides(conditions: Sequence[str], similarities: Sequence[np.ndarray]) -> list[Side]:
    """Two sides from samples of their similarities to a query, of two items or more.

    The fewer values one has, the more of its variance is that of the other: of five, the one that is meant would be most of
    their variance, and could not be far above the others.
    """
    variances = [values.var() for values in similarities]
    sides = []
    for condition, values, own, other in zip(conditions, similarities, variances, variances[::-1], strict=True):
        few = (FEW / len(values)) ** 2
        spread = float(np.sqrt((own + few * other) / (1 + few)))
        sides.append(Side([condition], float(values.mean()), max(spread, 1e-12)))
    return sides


@dataclass(frozen=True)
class Gallery:
    """Items among which others are looked for: modalities (n, width), which are there (n, k), siblings (n,)."""

    z: Mapping[str, np.ndarray]
    present: np.ndarray
    groups: np.ndarray

    def places(self, aligner: Aligner) -> np.ndarray:
        """Where they lie, from all that they have."""
        return place_rows(aligner, self.z, self.present)

    def best_of_patterns(
        self, queries: np.ndarray, places: np.ndarray, taken_off: np.ndarray, groups: np.ndarray
    ) -> np.ndarray:
        """The largest similarity of each query with the items of each pattern, (q, patterns), its siblings left out.

        Items lie at these places, and hubs cost them that; -inf where a query has no other items of a pattern.
        """
        patterns, which = np.unique(self.present, axis=0, return_inverse=True)
        similar = queries @ places.T - taken_off
        similar[groups[:, None] == self.groups] = -np.inf
        return np.stack([similar[:, which.ravel() == p].max(axis=1) for p in range(len(patterns))], axis=1)


def gains(aligner: Aligner, name: str, asked: Gallery, rivals: Gallery, places: np.ndarray) -> np.ndarray:
    """By how much earlier (1 / rank) items are found with their value of a modality, if sides are ranked side by side.

    Each is looked for among the rivals, which lie at these places, twice: as it is, and without that value. No aligner that
    has seen it may be asked.
    """
    column = list(asked.z).index(name)
    shares = rivals.present[:, column]
    if not len(asked.groups) or min(shares.sum(), (~shares).sum()) < 2:
        return np.zeros(len(asked.groups))
    value, without = np.zeros_like(asked.present), asked.present.copy()
    value[:, column], without[:, column] = True, False
    query = Gallery(asked.z, value, asked.groups).places(aligner)
    others = query @ places.T - taken_off(aligner, name, places)
    out = []
    for own, at in ((asked, 0), (Gallery(asked.z, without, asked.groups), 1)):
        items = own.places(aligner)
        mine = (query * items).sum(axis=1) - taken_off(aligner, name, items)
        for row, similarity, group in zip(others, mine, asked.groups, strict=True):
            rival = rivals.groups != group
            sides = both_sides(("", ""), (row[shares], row[~shares]))
            raw = 1 + (row[rival] >= similarity).sum()
            above = np.where(shares, sides[0].above(row), sides[1].above(row))
            out.append(1 / (1 + (above[rival] >= sides[at].above(similarity)).sum()) - 1 / raw)
    return np.array(out)


def taken_off(aligner: Aligner, name: str, places: np.ndarray) -> np.ndarray:
    """What hubs cost these places, (n,), for a query of this modality."""
    return aligner.hub_levels(places)[name] / 2 if name in aligner.references_ else np.zeros(len(places))


def pays(gain: np.ndarray) -> bool:
    """Whether items are found earlier beyond noise."""
    return bool(gain.mean() > NOISE * gain.std() / np.sqrt(len(gain)))


ERROR = (
    0.1  # share of what was meant that is called weak, and of queries for what is not there that find something close
)
LESS = 4  # times fewer errors of similarities than of queries that are unlike everything
FOLDS = 3
MOST = 2400  # items that play the query
SEARCHED = 10_000  # items in which those that are not there are looked for
ROUNDING = 1e-5  # of cosines
JOIN = " + "
LEVELS, CLOSE, APART = "levels", "close", "apart"  # of the layout: what `measured` gives


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

    "levels": modality of the query -> pattern D -> {"similarity" (None where c alone decides), "nearest", "n"}. "close":
    modality of the query -> pattern P -> similarity; P is empty where it is compared within its modality. "apart":
    modalities of queries that rank items which share the modality and items which do not each by what is usual among them.
    `fitted` says that the aligner was fitted on these items; of another one it is not known what it has seen.
    """
    groups = group_numbers(siblings, len(collection))
    drawn = np.random.default_rng(0).permutation(len(collection))[:MOST]
    names, present = list(collection.z), np.asarray(collection.present)
    levels: dict[str, Any] = {}
    close: dict[str, dict[str, float]] = {}
    nearest = {}
    for j, name in enumerate(names):
        rows = np.flatnonzero(present[:, j])
        kept = rows[hub_sample(len(rows))]
        asking = drawn[present[drawn, j]]
        nearest[name] = np.full(len(collection), np.nan)
        nearest[name][asking] = nearest_of(collection.z[name], asking, kept, groups)
        values = nearest[name][asking]
        values = values[np.isfinite(values)]
        if level := _levels(values):
            levels[name] = {"": level}
            close[name] = close_levels(values[:, None], [""], len(kept) / len(rows))
    apart: list[str] = []
    if aligner is not None and fitted:
        pairs, absent, earlier = _held_out(aligner, collection, drawn, groups)
        for (name, key), (rows, similar) in pairs.items():
            there = np.isfinite(nearest[name][rows])
            if name in levels and (level := _levels(nearest[name][rows][there], similar[there])):
                levels[name][key] = level
        for name in absent.keys() & close.keys():
            close[name] |= absent[name]
        if aligner.base_:
            apart = [name for name in names if name in aligner.widths_ and (name not in earlier or pays(earlier[name]))]
    return {LEVELS: levels, CLOSE: close, APART: apart}


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
) -> tuple[dict[tuple[str, str], tuple[np.ndarray, np.ndarray]], dict[str, dict[str, float]], dict[str, np.ndarray]]:
    """What items find that play the query, in spaces that were fitted without them.

    (modality of the query, pattern D) -> (rows, similarity of each with itself); modality -> pattern P -> level of what is
    close; modality -> gains of ranking side by side.
    """
    names = sorted(name for name in collection.z if name in aligner.widths_)
    observed = np.asarray(collection.present)[:, [list(collection.z).index(name) for name in names]]
    own = [names.index(name) for name in aligner.names_]
    rows = np.sort(drawn[observed[drawn][:, own or slice(None)].any(axis=1)])
    if (observed[rows].sum(axis=1) > 1).sum() < MIN_PAIRS or len(np.unique(groups[rows])) < FOLDS:
        return {}, {}, {}
    present = observed[rows]
    z = {name: np.asarray(collection.z[name][rows]) for name in names}
    patterns = [tuple(np.flatnonzero(pattern)) for pattern in np.unique(observed, axis=0)]
    asked = {(a, tuple(m for m in pattern if m != a)) for a, pattern in product(range(len(names)), patterns)}
    found: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = {}
    earlier: dict[str, list[np.ndarray]] = {}
    some = np.flatnonzero(observed.any(axis=1))
    some = np.random.default_rng(0).permutation(some)[:RIVALS]
    rivals = Gallery({name: np.asarray(collection.z[name][some]) for name in names}, observed[some], groups[some])
    there = np.flatnonzero(observed.any(axis=1))
    kept = np.sort(np.random.default_rng(1).permutation(there)[:SEARCHED])
    searched = Gallery({name: np.asarray(collection.z[name][kept]) for name in names}, observed[kept], groups[kept])
    found_absent: dict[str, list[np.ndarray]] = {}
    for twin, held in without_folds(
        aligner, {names[m]: z[names[m]] for m in own}, present[:, own], groups[rows], FOLDS
    ):
        for a, others in sorted(pair for pair in asked if pair[1]):
            at = held[present[held][:, [a, *others]].all(axis=1)]
            if not len(at):
                continue
            query, item = (_placed(twin, z, at, [names[m] for m in some]) for some in ((a,), others))
            similar = (query * item).sum(axis=1)
            similar = similar - taken_off(twin, names[a], item)
            key = key_of([names[m] for m in others], names[a])
            found.setdefault((names[a], key), []).append((rows[at], similar))
        lying = searched.places(twin)
        for a, name in enumerate(names):
            at = held[present[held, a]]
            if len(at):
                best = searched.best_of_patterns(
                    _placed(twin, z, at, [name]), lying, taken_off(twin, name, lying), groups[rows[at]]
                )
                found_absent.setdefault(name, []).append(best)
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
    keys = [JOIN.join(sorted(names[m] for m in np.flatnonzero(one))) for one in np.unique(searched.present, axis=0)]
    close = {
        name: close_levels(np.concatenate(parts), keys, len(kept) / len(there)) for name, parts in found_absent.items()
    }
    return pairs, close, {name: np.concatenate(parts) for name, parts in earlier.items() if sum(map(len, parts))}


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


def close_levels(best: np.ndarray, keys: Sequence[str], share: float = 1.0) -> dict[str, float]:
    """A level for each column of best (n, patterns), above any of which share * ERROR of the rows have a value.

    There are none for too few rows, nor of a column that has nothing (-inf) where its level would be.
    """
    n = len(best)
    k = int(share * ERROR * (n + 1) + 1e-9)
    if k < 1:
        return {}
    columns = [np.sort(column) for column in best.T]
    ranks = [n + 1 - np.searchsorted(low, column, "right") for low, column in zip(columns, best.T, strict=True)]
    rank = int(np.sort(np.min(ranks, axis=0))[k - 1])
    levels = {key: float(low[n - rank]) + ROUNDING for key, low in zip(keys, columns, strict=True)}
    return {key: level for key, level in levels.items() if np.isfinite(level)}


def judged(
    layout: Mapping[str, Any], query: str, item: Iterable[str], similarity: float, nearest: float
) -> tuple[bool | None, bool | None]:
    """(weak, close): the verdict on a hit, by what its item has; None where no level is known for such queries."""
    of, has = (layout.get(LEVELS) or {}).get(query), sorted(item)
    if not of:
        return None, None
    level = of.get(key_of(has, query)) or of[""]
    weak = nearest < level["nearest"] or (level["similarity"] is not None and similarity < level["similarity"])
    above = (layout.get(CLOSE) or {}).get(query, {}).get(JOIN.join(has))
    return weak, None if above is None else not weak and similarity >= above
