"""The numbers of a diagnosis: what is missing, what can be predicted, and how far missing modalities move anchors.

In rows with known modalities, some are hidden as they are missing elsewhere in the data. With u the anchor of the whole
row, shift before = |u - u(what is left)|, shift after = |u - u(what is left + what is imputed)|.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from calmrl.anchors import anchor
from calmrl.arrays import LARGEST_ELSE, blocks_of_rows, release
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.hiding import hide
from calmrl.data.patterns import ModalityPattern, connected, patterns, rows_together
from calmrl.errors import InputError
from calmrl.imputers.auto import AutoImputer
from calmrl.protocols import Progress
from calmrl.workflows.diagnose.predictable import (
    FOLDS,
    Arrays,
    Direction,
    FoldedRows,
    aligner,
    deal,
    directions,
    fit_folds,
    imputer,
    in_one_space,
    recoverable,
)

CHUNK_BYTES = 1 << 24
SAMPLE_ROWS = 5000
SAMPLE_BYTES = 1 << 27  # of the sample, which is in single precision


@dataclass(frozen=True)
class Modality:
    """One modality over all rows."""

    name: str
    width: int
    rows: int  # rows that have it
    missing: float  # share of all rows that lack it
    zeros: int  # observed rows that are 0 throughout: often missing ones in disguise
    constant: int  # columns that never vary
    norm: float  # mean length of the observed rows


def describe(features: FeatureSet) -> list[Modality]:
    """Counts over all rows, read chunk by chunk; an observed value that is not finite is an error."""
    return [_describe(name, array, features.present[:, j]) for j, (name, array) in enumerate(features.z.items())]


def _describe(name: str, array: np.ndarray, present: np.ndarray) -> Modality:
    rows = zeros = 0
    length = 0.0
    low = np.full(array.shape[1], np.inf)
    high = np.full(array.shape[1], -np.inf)
    for start, stop in blocks_of_rows(len(array), array.dtype.itemsize * array.shape[1], CHUNK_BYTES):
        block = np.asarray(array[start:stop])[present[start:stop]]
        release(array)
        if not len(block):
            continue
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        if not (low.min() >= -LARGEST_ELSE and high.max() <= LARGEST_ELSE):
            raise InputError(_unusable(name, block, start, present[start:stop]))
        square = np.einsum("nd,nd->n", block, block, dtype=np.float64)
        rows += len(block)
        zeros += int((~block.any(axis=1)).sum())
        length += float(np.sqrt(square).sum())
    constant = int((low == high).sum())
    return Modality(name, array.shape[1], rows, 1 - rows / max(1, len(array)), zeros, constant, length / max(1, rows))


def _unusable(name: str, block: np.ndarray, start: int, present: np.ndarray) -> str:
    """What is wrong with the first observed row that is not finite or too large."""
    size = np.abs(block).max(axis=1)
    wrong = int(np.flatnonzero(~(size <= LARGEST_ELSE))[0])
    row = start + int(np.flatnonzero(present)[wrong])
    if not np.isfinite(size[wrong]):
        return f"{name} has a value in row {row} that is not finite; mark the row missing or repair it"
    return (
        f"{name} has a value of size {size[wrong]:.3g} in row {row}; a diagnosis works in single precision, with values "
        f"up to {LARGEST_ELSE:g}: repair it, or divide the modality by a constant"
    )


def sample(features: FeatureSet, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(z, present) of some rows in memory, all of them if they are few; missing blocks are 0.

    Rows with two modalities or more tell how these belong together: at least half of the sample are such rows, if
    there are so many. Rows without any modality are left out.
    """
    widths = [array.shape[1] for array in features.z.values()]
    wanted = min(SAMPLE_ROWS, max(100, SAMPLE_BYTES // (4 * sum(widths))))
    rng = np.random.default_rng(seed)
    held = features.present.sum(axis=1)
    several, single = np.flatnonzero(held > 1), np.flatnonzero(held == 1)
    if len(several) + len(single) > wanted:
        share = len(several) / (len(several) + len(single))
        take = min(len(several), round(wanted * max(0.5, share)))
        several = rng.choice(several, take, replace=False)
        single = rng.choice(single, min(len(single), wanted - take), replace=False)
    rows = np.sort(np.concatenate([several, single]))
    present = np.asarray(features.present[rows])
    return {name: _taken(array, rows, present[:, j]) for j, (name, array) in enumerate(features.z.items())}, present


def _taken(array: np.ndarray, rows: np.ndarray, present: np.ndarray) -> np.ndarray:
    """The rows (in ascending order), read stretch by stretch; 0 where missing."""
    values = np.zeros((len(rows), array.shape[1]), dtype=np.float32)
    for start, stop in blocks_of_rows(len(array), array.dtype.itemsize * array.shape[1], CHUNK_BYTES):
        here = slice(*np.searchsorted(rows, (start, stop)))
        values[here] = np.where(present[here, None], array[rows[here]], 0.0)
        release(array)
    return values


def pick(z: dict[str, np.ndarray], present: np.ndarray, columns: list[int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """These modalities, and the rows that have one of them."""
    rows = present[:, columns].any(axis=1)
    names = list(z)
    return {names[j]: z[names[j]][rows] for j in columns}, present[rows][:, columns]


ENOUGH = 60  # complete rows; with fewer, rows with two modalities or more are tested as well


@dataclass(frozen=True)
class Shift:
    """Mean shift of the anchors of tested rows, and its standard deviation over the folds."""

    before: float
    before_spread: float
    after: float
    after_spread: float
    mean: float  # after imputing the mean of each modality
    nearer: float  # share of rows whose anchor comes closer
    n: int
    complete: bool  # whether only complete rows were tested

    @property
    def reduction(self) -> float:
        """Relative: 1 is all of the shift, 0 is nothing."""
        return 1 - self.after / self.before if self.before > 0 else 0.0


def anchor_shifts(
    rows: FoldedRows,
    spaces: list[Arrays],
    models: list[AutoImputer],
    holes: list[tuple[np.ndarray, int]],
    seed: int,
) -> Shift | None:
    """Test rows lose what the patterns in `holes` lack (drawn by their frequency; one at random if there are none)."""
    held = rows.present.sum(axis=1)
    complete = held == rows.present.shape[1]
    only_complete = int(complete.sum()) >= ENOUGH
    usable = complete if only_complete else held > 1
    results: list[np.ndarray] = []
    for fold in range(FOLDS):
        here = np.flatnonzero(usable & (rows.fold == fold))
        if len(here) < 2:
            return None
        z = {name: array[here] for name, array in spaces[fold].items()}
        has = rows.present[here]
        left = punch(has, holes, np.random.default_rng([seed, fold]))
        trained = rows.fold != fold
        middle = {
            name: np.where(left[:, [j]], z[name], array[trained & rows.present[:, j]].mean(axis=0))
            for j, (name, array) in enumerate(spaces[fold].items())
        }
        whole = anchor(z, has)
        results.append(
            np.stack(
                [
                    np.linalg.norm(whole - anchor(z, left), axis=1),
                    np.linalg.norm(whole - anchor(models[fold].transform(z, left), has), axis=1),
                    np.linalg.norm(whole - anchor(middle, has), axis=1),
                ]
            )
        )
    means = np.array([shifts.mean(axis=1) for shifts in results])  # (folds, 3)
    every = np.concatenate(results, axis=1)
    return Shift(
        before=float(means[:, 0].mean()),
        before_spread=float(means[:, 0].std(ddof=1)),
        after=float(means[:, 1].mean()),
        after_spread=float(means[:, 1].std(ddof=1)),
        mean=float(means[:, 2].mean()),
        nearer=float((every[1] < every[0]).mean()),
        n=every.shape[1],
        complete=only_complete,
    )


def punch(has: np.ndarray, holes: list[tuple[np.ndarray, int]], rng: np.random.Generator) -> np.ndarray:
    """What is left of each row after a pattern of `holes` is laid over it; a row that this would leave whole or empty
    loses one modality at random instead."""
    left = hide(has, 1.0, rng, kind="one")
    if holes:
        patterns = np.array([pattern for pattern, _ in holes])
        weights = np.array([count for _, count in holes], dtype=float)
        cut = has & patterns[rng.choice(len(patterns), len(has), p=weights / weights.sum())]
        fits = cut.any(axis=1) & (cut != has).any(axis=1)
        left = np.where(fits[:, None], cut, left)
    return left


LEAST_ROWS = 10
MOST_ROWS = 1000  # rows per fold of which all pairs are compared
SHARED = 0.6  # partners that are nearer than strangers so often show that features are in one space already


@dataclass(frozen=True)
class Pair:
    """Two modalities in one space."""

    first: str
    second: str
    gap: float  # |mean of unit vectors - mean of unit vectors|, 0 to 2
    meet: float  # how often a row's two vectors are more alike than vectors of two rows; 0.5 is chance
    spread: float  # of `meet`, standard deviation over the folds
    n: int  # rows that have both


def pairs(rows: FoldedRows, spaces: list[Arrays]) -> list[Pair]:
    """All pairs that enough rows have together; `spaces` holds the unit vectors of all rows, per fold."""
    measured = []
    for (i, first), (j, second) in combinations(enumerate(rows.names), 2):
        both = rows.present[:, i] & rows.present[:, j]
        gaps, meets = [], []
        for fold in range(FOLDS):
            tested = rows.fold == fold
            here = np.flatnonzero(both & tested)[:MOST_ROWS]
            if len(here) < LEAST_ROWS:
                break
            unit = spaces[fold]
            centres = [unit[name][tested & rows.present[:, m]].mean(axis=0) for m, name in ((i, first), (j, second))]
            gaps.append(np.linalg.norm(centres[0] - centres[1]))
            meets.append(meeting(unit[first][here], unit[second][here]))
        if len(meets) == FOLDS:
            gap, meet, spread = float(np.mean(gaps)), float(np.mean(meets)), float(np.std(meets, ddof=1))
            measured.append(Pair(first, second, gap, meet, spread, int(both.sum())))
    return measured


def meeting(first: np.ndarray, second: np.ndarray) -> float:
    """P(a_i . b_i > a_i . b_j), j another row, ties counted half; each modality is centred first."""
    scores = (first - first.mean(axis=0)) @ (second - second.mean(axis=0)).T
    own = np.diag(scores)[:, None]
    n = len(scores)
    wins = (own > scores).sum() + 0.5 * ((own == scores).sum() - n)
    return float(wins / (n * (n - 1)))


@dataclass(frozen=True)
class Diagnosis:
    """The numbers. Counts are over all rows; the rest is from `tested` rows of a sample."""

    name: str
    rows: int
    sampled: int
    modalities: list[Modality]
    patterns: list[ModalityPattern]
    groups: list[tuple[str, ...]]  # modalities that rows tie together; only the first group is examined
    tested: int = 0
    directions: list[Direction] = field(default_factory=list)
    recoverable: dict[str, tuple[float, int]] = field(default_factory=dict)  # name -> (explained share, missing blocks)
    as_given: list[Pair] = field(default_factory=list)  # empty if the widths differ
    latent: list[Pair] = field(default_factory=list)
    shared_space: bool = False  # the features as given are in one space already
    shift: Shift | None = None

    @property
    def missing(self) -> float:
        """Share of all blocks that is missing."""
        return sum(m.missing for m in self.modalities) / len(self.modalities)

    @property
    def incomplete(self) -> float:
        """Share of rows that lack something."""
        return float(sum(p.share for p in self.patterns if len(p.modalities) < len(self.modalities)))

    @property
    def back(self) -> float:
        """Explained share of what is missing: explained shares, weighted by missing blocks."""
        blocks = sum(count for _, count in self.recoverable.values())
        return sum(share * count for share, count in self.recoverable.values()) / blocks if blocks else 0.0

    @property
    def gain(self) -> float:
        """Expected gain: share of blocks that are missing x explained share of these, or 0 if that is negative."""
        return self.missing * max(0.0, self.back)

    @property
    def anchor_gain(self) -> float:
        """Expected fall of the mean anchor shift over all rows: share of incomplete rows x (shift before - after)."""
        return 0.0 if self.shift is None else self.incomplete * (self.shift.before - self.shift.after)

    @property
    def examined(self) -> list[Modality]:
        """The modalities that were tested against each other."""
        return [m for m in self.modalities if m.name in self.groups[0]]

    def whole(self, name: str) -> Direction | None:
        """How well a modality is predicted from all others."""
        every = len(self.groups[0]) - 1
        return next((d for d in self.directions if d.target == name and len(d.sources) == every), None)

    def as_text(self) -> str:
        """For a terminal of 80 columns: the verdict, the tables it rests on, remarks."""
        from calmrl.workflows.diagnose.run import as_text

        return as_text(self)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, verdicts and sentences included."""
        from calmrl.workflows.diagnose.run import by_modality, overall, sentences

        verdict = overall(self)
        return {
            "verdict": verdict.verdict,
            "rests_on": {"value": verdict.number, "meaning": verdict.meaning},
            "expected_gain": {"variance": self.gain, "anchor_shift": self.anchor_gain},
            "missing_blocks": self.missing,
            "incomplete_rows": self.incomplete,
            "words": sentences(self),
            "modality_verdicts": [asdict(v) for v in by_modality(self)],
            **asdict(self),
        }


LEAST_TOGETHER = 30  # rows that must have two modalities for one to be learned from the other
MOST_PATTERNS = 16  # patterns of holes that are tested one by one; the others are mostly a handful of rows


def examine(features: FeatureSet, seed: int, progress: Progress) -> Diagnosis:
    """Count over all rows, fit on a sample, and test each row by models that did not see it."""
    progress(0, 0, "counting")
    modalities = describe(features)
    z, seen = sample(features, seed)
    groups = connected(rows_together(seen), LEAST_TOGETHER)
    counts: dict[str, Any] = {
        "name": features.name,
        "rows": len(features),
        "sampled": len(seen),
        "modalities": modalities,
        "patterns": patterns(features.present, features.names),
        "groups": [tuple(features.names[j] for j in group) for group in groups],
    }
    if len(groups[0]) < 2:
        return Diagnosis(**counts)
    rows = deal(*pick(z, seen, groups[0]), seed)
    holes = _holes(counts["patterns"], rows.names)
    given = [rows.z] * FOLDS
    models = fit_folds(rows, given, imputer(seed), progress, "predicting each modality from the others")
    predicted = directions(rows, models, seed, progress)
    progress(0, 0, "looking for one space")
    spaces = [in_one_space(None, rows.z)] * FOLDS if len({a.shape[1] for a in rows.z.values()}) == 1 else None
    as_given = pairs(rows, spaces) if spaces is not None else []
    shared = bool(as_given) and min(pair.meet for pair in as_given) >= SHARED
    aligners = fit_folds(rows, given, aligner(seed), progress, "looking for one space")
    latent = [in_one_space(model, rows.z) for model in aligners]
    if spaces is None or not shared:
        spaces = latent
    imputers = fit_folds(rows, spaces, imputer(seed), progress, "moving anchors")
    return Diagnosis(
        **counts,
        tested=len(rows),
        directions=predicted,
        recoverable=recoverable(rows, models, holes[:MOST_PATTERNS], predicted),
        as_given=as_given,
        latent=pairs(rows, latent),
        shared_space=shared,
        shift=anchor_shifts(rows, spaces, imputers, holes, seed),
    )


def _holes(every: list[ModalityPattern], names: tuple[str, ...]) -> list[tuple[np.ndarray, int]]:
    """What incomplete rows have of these modalities, and how many rows have exactly that, the most frequent first."""
    counts: Counter[tuple[bool, ...]] = Counter()
    for pattern in every:
        counts[tuple(name in pattern.modalities for name in names)] += pattern.rows
    return [(np.array(has), rows) for has, rows in counts.most_common() if any(has) and not all(has)]
