"""Two sides of a query, ranked together: items that share a modality with it, and items that do not.

Words are nearer to whatever has words than to the picture that they describe, so that a few captions would hide all pictures
without one. Ranked side by side, an item stands as high as its similarity is above what is usual on its side, in standard
deviations of the similarities there. It is done beside a base, for queries of those modalities whose held-out items are found
earlier by it, beyond noise, or where there are no pairs to try it with. Where modalities meet as closely as each meets itself,
it would only add noise; and in a space of its own, items with a text lost about as much as the others gained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calmrl.aligner.estimator import Aligner
from calmrl.aligner.posterior import place_rows

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
