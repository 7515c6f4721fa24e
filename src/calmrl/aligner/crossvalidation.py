"""Cross-validation of the aligner: a sample of rows, folds, and what held-out rows find with a candidate.

Where several gallery items count as found (`RelevantRanks`), it is how many others stand above each of them.

A random gallery of n holds the query's own row and n - 1 of the g - 1 other items, relevant ones among them. Let c_j be the
number of items above the j-th best relevant one that are not relevant, up to the own row, the J-th, which is always there.
The query is a hit at k with probability

    sum over j < J of  P(1 ... j-1 are not drawn, j is)  P(at most k - 1 of c_j among the n - 2 other draws)
    + P(1 ... J-1 are not drawn)                         P(at most k - 1 of c_J among the n - 1 draws).

With one relevant item only the last term is left.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np
import torch
from scipy.stats import hypergeom
from torch import Tensor

from calmrl._support.distributed import gather_objects, world
from calmrl._support.engine import Engine
from calmrl.aligner.features import FeatureMap, fit_linear, kernel_of_rows, with_relative
from calmrl.aligner.space import (
    Candidate,
    Space,
    beside_relative,
    fit_space,
    side_by_side,
    source_of_features,
)
from calmrl.arrays import Views
from calmrl.latent.rows import Source
from calmrl.metrics.retrieve import RelevantItems, ranks_of_scores, relevant_items

BEFORE = 32  # relevant items kept besides the own row; more of them matter only in galleries of a few percent

NEGLIGIBLE = 1e-6  # probability of a case that is left out


@dataclass(frozen=True)
class RelevantRanks:
    """Per query: others above its relevant items, how many of these there are, and which queries share them."""

    above: np.ndarray  # (n, J) float64, best item first, the own row last, NaN between; halves where scores tie
    relevant: np.ndarray  # (n,) int64, relevant items in the gallery, the own row included
    group: np.ndarray  # (n,) int64, the same number where queries of one fold have the same relevant items

    @staticmethod
    def join(parts: Sequence[RelevantRanks]) -> RelevantRanks:
        """The queries of several folds."""
        width = max(part.above.shape[1] for part in parts)
        padded, groups, start = [], [], 0
        for part in parts:
            gap = np.full((len(part.above), width - part.above.shape[1]), np.nan)
            padded.append(np.concatenate([part.above[:, :-1], gap, part.above[:, -1:]], axis=1))
            groups.append(start + part.group)
            start += int(part.group.max(initial=-1)) + 1
        return RelevantRanks(
            np.concatenate(padded), np.concatenate([part.relevant for part in parts]), np.concatenate(groups)
        )

    def hits(self, k: int, n: int, gallery: np.ndarray) -> np.ndarray:
        """(queries,) probability of a hit at k in a random gallery of n; `gallery` (queries,) is the size that was seen."""
        left = (gallery - 1).astype(float)  # items that may be drawn, without those already known not to be
        undrawn, chance = np.ones(len(left)), np.zeros(len(left))
        for above in self.above[:, :-1].T:
            there = ~np.isnan(above)
            drawn = np.where(there, np.minimum(1.0, (n - 1) / np.maximum(left, 1)), 0.0)
            rows = undrawn * drawn > NEGLIGIBLE
            chance[rows] += (undrawn * drawn)[rows] * at_most(k - 1, left[rows] - 1, above[rows], n - 2)
            undrawn *= 1 - drawn
            left -= there
        return chance + undrawn * at_most(k - 1, left, self.above[:, -1], n - 1)

    def mean_count(self, n: int, gallery: np.ndarray) -> float:
        """Relevant items of a query in a random gallery of n, on average."""
        return float((1 + (self.relevant - 1) * (n - 1) / (gallery - 1)).mean())


def at_most(k: int, items: np.ndarray, marked: np.ndarray, draws: int) -> np.ndarray:
    """P(at most k marked ones among so many draws from `items`); between whole numbers of marked ones, linear."""
    items = np.maximum(items, 0)
    cases, inverse = np.unique(np.stack([items, marked]), axis=1, return_inverse=True)  # many queries are alike
    items, marked = cases
    low = np.floor(marked)
    share = marked - low
    taken = np.clip(draws, 0, items)
    some = np.maximum(items, 1)  # SciPy has no answer for none, of which none is drawn
    at = [hypergeom.cdf(k, some, np.minimum(low + step, items), taken) for step in (0, 1)]
    return ((1 - share) * at[0] + share * at[1])[inverse.reshape(-1)]


def relevant_ranks(scores: Tensor, relevant: Tensor, own: Tensor) -> RelevantRanks:
    """From scores (q, g), which items are relevant to each query (q, g), and the place of its own row (q,)."""
    lowest = -torch.inf
    mine = scores.gather(1, own[:, None])
    best = scores.masked_fill(~relevant, lowest).topk(min(BEFORE, scores.shape[1]), dim=1).values
    best = best.masked_fill(best <= mine, lowest)  # the own row is always there, so that later ones do not matter
    others = scores.masked_fill(relevant, lowest).sort(dim=1).values
    levels = torch.cat([best, mine], dim=1)  # (q, J)
    above = scores.shape[1] - torch.searchsorted(others, levels, right=True)
    tied = scores.shape[1] - torch.searchsorted(others, levels) - above
    same = levels[:, :, None] == levels[:, None, :]  # (q, J, J)
    place, alike = same.tril().sum(2), same.sum(2)
    place[:, -1], alike[:, -1] = 1, (relevant & (scores == mine)).sum(1)
    before = above + tied * place / (alike + 1)
    before[:, :-1][best == lowest] = torch.nan
    used = torch.cat([(best > lowest).any(0), torch.ones(1, dtype=torch.bool, device=best.device)])
    first = relevant.int().argmax(1)  # the same for queries with the same relevant items
    return RelevantRanks(before[:, used].double().cpu().numpy(), relevant.sum(1).cpu().numpy(), first.cpu().numpy())


RARE = 500  # a modality that fewer rows have is sampled whole


@dataclass(frozen=True)
class Rows:
    """Some rows: values per modality (NaN where missing), mask, and the group and relevance of each row."""

    z: list[Tensor]  # (n, d_m)
    present: Tensor  # (n, k)
    groups: np.ndarray  # (n,) int64, rows with the same number belong together
    relevant: np.ndarray | None = None  # (n,) int64, rows with the same number count for each other; -1: with no other

    def __len__(self) -> int:
        return len(self.present)

    def take(self, index: Tensor) -> Rows:
        """Some of the rows."""
        at = index.cpu().numpy()
        relevant = None if self.relevant is None else self.relevant[at]
        return Rows([z[index] for z in self.z], self.present[index], self.groups[at], relevant)

    def of(self, m: int) -> Tensor:
        """The values of the rows that have modality m, (n_m, d_m)."""
        return self.z[m][self.present[:, m]]


def sample(source: Source, groups: np.ndarray | None, most: int, seed: int, relevant: np.ndarray | None = None) -> Rows:
    """About `most` random rows of all processes, and all rows of modalities that few rows have.

    `groups` numbers the rows of this process; None puts every row in a group of its own. `relevant` numbers them, too.
    """
    generator = torch.Generator().manual_seed(seed)
    rate = min(1.0, most / max(1, source.rows))
    rare = (source.count <= RARE).cpu()

    def pick(views: Views) -> Tensor:
        keep = torch.rand(len(views), generator=generator) < rate if rate < 1 else torch.ones(len(views)).bool()
        return (keep | (views.present.cpu() & rare).any(1)).nonzero()[:, 0]

    z, present, places = source.take(pick)
    at = places.numpy()
    numbers = at if groups is None else groups[at]
    mine = Rows(z, present, numbers, None if relevant is None else relevant[at])
    return _over_processes(mine, source.device, groups is None)


def _over_processes(mine: Rows, device: torch.device, own_groups: bool) -> Rows:
    """The samples of all processes one after the other; without groups, rows of different processes stay apart."""
    if world()[0] == 1:
        return mine
    gathered = gather_objects(mine)
    numbers, offset = [], 0
    for rows in gathered:
        numbers.append(rows.groups + offset)
        offset += int(rows.groups.max(initial=-1)) + 1 if own_groups else 0
    return Rows(
        [torch.cat([rows.z[m].to(device) for rows in gathered]) for m in range(len(mine.z))],
        torch.cat([rows.present.to(device) for rows in gathered]),
        np.concatenate(numbers),
        None if mine.relevant is None else np.concatenate([rows.relevant for rows in gathered]),
    )


def folds_of(rows: Rows, folds: int, seed: int) -> np.ndarray:
    """The fold of each row, (n,): groups stay together, and each missing pattern is spread over the folds.

    Groups are drawn in random order, rows of one pattern after the other, and each goes to the fold that has fewest
    rows of that pattern, then fewest rows.
    """
    random = np.random.default_rng(seed)
    _, pattern = np.unique(rows.present.cpu().numpy(), axis=0, return_inverse=True)
    _, first, inverse = np.unique(rows.groups, return_index=True, return_inverse=True)
    size = np.bincount(inverse)
    order = random.permutation(len(first))
    order = order[np.lexsort((np.arange(len(order)), pattern[first][order]))]
    order = order[np.argsort(-size[order], kind="stable")]
    filled = np.zeros((int(pattern.max(initial=0)) + 1, folds))
    home = np.zeros(len(first), dtype=np.int64)
    for group in order:
        mine = pattern[first[group]]
        home[group] = min(range(folds), key=lambda fold: (filled[mine, fold], filled[:, fold].sum(), fold))
        filled[mine, home[group]] += size[group]
    return home[inverse]


@dataclass(frozen=True)
class FoldDirection:
    """What the queries of one direction found: the (expected) rank of each, and the size of their gallery.

    `own` holds more about queries to which several items are relevant; only `outcome(..., every=True)` computes it.
    """

    ranks: np.ndarray  # (n,) float64, from 1
    gallery: int
    own: RelevantRanks | None = None


Outcome = dict[tuple[int, int], FoldDirection]  # (asked with, asked for) -> what was found
Mapped = tuple[list[FeatureMap], list[Tensor], list[Tensor]]  # maps, features of training rows, of held-out rows


@dataclass
class Fold:
    """Training and held-out rows, with the features already computed from them."""

    names: list[str]
    train: Rows
    held: Rows
    seed: int
    landmarks: int
    spaces: dict[Candidate, Space] = field(default_factory=dict)
    _mapped: dict[tuple[str, bool, bool], Mapped] = field(default_factory=dict)

    def bare(self) -> Fold:
        """The rows alone, to be sent elsewhere."""
        return Fold(self.names, self.train, self.held, self.seed, self.landmarks)

    def mapped(self, candidate: Candidate) -> Mapped:
        """Before whitening."""
        key = (candidate.features, candidate.unit_rows, candidate.relative)
        if key not in self._mapped:
            mapped = self._beside_relative(candidate) if candidate.relative else self._mapped_rows(*key[:2])
            self._mapped[key] = mapped
        return self._mapped[key]

    def _mapped_rows(self, features: str, unit: bool) -> Mapped:
        fitted = fit_features(self.train, features, unit, self.seed, self.landmarks)
        train = [lift(self.train.of(m)) if own is None else own for m, (lift, own) in enumerate(fitted)]
        return [lift for lift, _ in fitted], train, [lift(self.held.of(m)) for m, (lift, _) in enumerate(fitted)]

    def _beside_relative(self, candidate: Candidate) -> Mapped:
        """The features without relative representations, and these beside them."""
        maps, *plain = self.mapped(replace(candidate, relative=False))
        values = [self.train.of(m) for m in range(len(maps))]
        linear, *_ = self._mapped.get(("linear", candidate.unit_rows, False), (None, None))
        maps = with_relative(maps, values, self.train.present, self.seed, linear)
        train, held = (
            [
                torch.cat([own, lift.near(rows.of(m))], dim=1)
                for m, (own, lift) in enumerate(zip(part, maps, strict=True))
            ]
            for part, rows in zip(plain, (self.train, self.held), strict=True)
        )
        return maps, train, held

    def whitened(self, candidate: Candidate) -> tuple[list[Tensor], list[Tensor]]:
        """Whitened features of training and held-out rows."""
        maps, *parts = self.mapped(candidate)
        scales = [feature_map.scale(candidate.whitening) for feature_map in maps]
        train, held = ([f * s.to(f) for f, s in zip(part, scales, strict=True)] for part in parts)
        return train, held

    def evaluate(self, candidate: Candidate) -> Outcome:
        """Fit on the training rows and rank the held-out ones."""
        return self.look(self.fit(candidate), candidate)

    def fit(self, candidate: Candidate) -> Space:
        """The space of the training rows; parts of it that were fitted before are not fitted again."""
        for part in candidate.parts:
            if part not in self.spaces:
                train, _ = self.whitened(part)
                source = source_of_features(self.names, train, self.train.present, shared=False)
                self.spaces[part] = fit_space(source, part, self.seed)
        maps, *_ = self.mapped(replace(candidate, relative=False))
        space = side_by_side(candidate, maps, [self.spaces[part] for part in candidate.parts])
        if candidate.relative:
            maps, *_ = self.mapped(candidate)
            space = beside_relative(space, maps, self.whitened(candidate)[0])
        self.spaces[candidate] = space
        return space

    def look(self, space: Space, candidate: Candidate, every: bool = False) -> Outcome:
        """What the held-out rows find in a space of the features of this candidate."""
        _, held = self.whitened(candidate)
        return outcome([space.unit(m, f) for m, f in enumerate(held)], self.held.present, self.held.relevant, every)


def fit_feature_maps(rows: Rows, features: str, unit: bool, seed: int, landmarks: int) -> list[FeatureMap]:
    """One feature_map per modality, from the rows that have it."""
    return [lift for lift, _ in fit_features(rows, features, unit, seed, landmarks)]


def fit_features(
    rows: Rows, features: str, unit: bool, seed: int, landmarks: int
) -> list[tuple[FeatureMap, Tensor | None]]:
    """As `fit_feature_maps`, each with the features of its rows where these are known from the fit."""
    if features == "linear":
        return [(fit_linear(rows.of(m), unit), None) for m in range(len(rows.z))]
    generator = torch.Generator().manual_seed(seed)
    return [kernel_of_rows(rows.of(m), unit, generator, landmarks) for m in range(len(rows.z))]


HUB_NEIGHBOURS = 10


def hub_levels(gallery: Tensor, references: Tensor) -> Tensor:
    """r(g), (n,): the mean of the ten largest inner products of each gallery vector with those of training items.

    An item near to everything has a high level; s(q, g) - r(g) / 2 takes that off, without looking at other queries.
    """
    most = min(HUB_NEIGHBOURS, len(references))
    if not most:
        return gallery.new_zeros(len(gallery))
    parts = [(block @ references.T).topk(most, dim=1).values.mean(1) for block in gallery.split(4096)]
    return torch.cat(parts) if parts else gallery.new_zeros(0)


def outcome(
    unit: list[Tensor],
    present: Tensor,
    relevant: np.ndarray | None = None,
    every: bool = False,
    references: list[Tensor] | None = None,
) -> Outcome:
    """Ranks for every direction with at least one query and two gallery items; `unit[m]` are the rows that have m.

    `relevant` says which rows count for each other, as in `Rows`. With `every`, all relevant items are looked at, not the
    best alone. `references[m]`, vectors of training items from modality m, correct for hubs.
    """
    directions: Outcome = {}
    ids = _row_ids(relevant, len(present))
    number = present.long().cumsum(0) - 1
    for a, b in permutations(range(len(unit)), 2):
        both = (present[:, a] & present[:, b]).nonzero()[:, 0]
        gallery = unit[b]
        if not len(both) or len(gallery) < 2:
            continue
        queries = unit[a][number[both, a]]
        asked, there = ids[both.cpu()], ids[present[:, b].cpu()]
        if relevant is None:  # every query has its own row alone
            every_item, place = torch.arange(len(gallery)), number[both, b].cpu()
            own = RelevantItems(every_item, every_item, place, place + 1)
        else:
            own = relevant_items(asked.tolist(), there.tolist(), len(queries), len(gallery))

        level = gallery.new_zeros(len(gallery)) if references is None else hub_levels(gallery, references[a]) / 2

        def scores(
            start: int, stop: int, queries: Tensor = queries, gallery: Tensor = gallery, level: Tensor = level
        ) -> Tensor:
            return queries[start:stop] @ gallery.T - level

        ranks = ranks_of_scores(scores, len(queries), own, step=1024)
        several = None
        if every and len(there.unique()) < len(there):
            same = (asked[:, None] == there).to(gallery.device)
            several = relevant_ranks(queries @ gallery.T - level, same, number[both, b])
        directions[a, b] = FoldDirection(ranks.expected().numpy(), len(gallery), several)
    return directions


def _row_ids(relevant: np.ndarray | None, rows: int) -> Tensor:
    """(rows,) equal where rows count for each other."""
    alone = -1 - torch.arange(rows)
    if relevant is None:
        return alone
    numbers = torch.from_numpy(relevant)
    return torch.where(numbers < 0, alone, numbers)


def score(outcomes: Iterable[Outcome]) -> float:
    """The score of a candidate over some folds; 0 where there was nothing to find."""
    per: dict[tuple[int, int], list[FoldDirection]] = {}
    for one in outcomes:
        for key, direction in one.items():
            per.setdefault(key, []).append(direction)
    means = []
    for directions in per.values():
        gains = np.concatenate([math.log(d.gallery) / d.ranks for d in directions])
        means.append(float(gains.mean()))
    return float(np.mean(means)) if means else 0.0


Pair = tuple[int, Candidate]  # number of a fold, candidate

_kept: dict[tuple[str, int], Fold] = {}  # of this worker; all of one cross-validation


@dataclass
class DistributedFolds:
    """What the folds find with candidates: computed when it is asked for, or before, by an engine."""

    folds: list[Fold]
    engine: Engine | None = None
    ready: dict[Pair, Outcome] = field(default_factory=dict)
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def ahead(self, pairs: Sequence[Pair]) -> None:
        """Let the engine evaluate these; without one, nothing is done before it is asked for."""
        if self.engine is None:
            return
        new = [pair for pair in pairs if pair not in self.ready]
        evaluated = self.engine.map(_evaluate, new, self.key, [fold.bare() for fold in self.folds])
        for (number, candidate), (outcome, space) in zip(new, evaluated, strict=True):
            self.ready[number, candidate] = outcome
            self.folds[number].spaces[candidate] = space

    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        """What a fold finds with a candidate."""
        if (number, candidate) not in self.ready:
            self.ready[number, candidate] = self.folds[number].evaluate(candidate)
        return self.ready[number, candidate]


@torch.no_grad()
def _evaluate(pair: Pair, key: str, folds: list[Fold]) -> tuple[Outcome, Space]:
    number, candidate = pair
    if any(other != key for other, _ in _kept):
        _kept.clear()
    fold = _kept.setdefault((key, number), folds[number])
    return fold.evaluate(candidate), fold.spaces[candidate]
