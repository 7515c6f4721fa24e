"""What the data sets share: files in the package, a split that keeps groups together, and scaling by the training rows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

SHARES = {"train": 0.7, "val": 0.1, "test": 0.2}


def split_by_group(groups: Sequence[str], largest: int | None = None) -> np.ndarray:
    """ "train", "val" or "test" per row, in shares of 70, 10 and 20 %; rows of the same group stay together.

    Groups are ordered by the hash of their name; each goes to the split that is furthest behind its share. Groups
    of more than `largest` rows go to train, before all others, so that none of them makes up most of a small split.
    """
    sizes = Counter(groups)
    order = sorted(sizes, key=lambda group: hashlib.sha256(group.encode()).digest())
    filled = dict.fromkeys(SHARES, 0)
    home: dict[str, str] = {}
    large = {group for group in order if largest is not None and sizes[group] > largest}
    for group in sorted(order, key=lambda group: group not in large):
        home[group] = "train" if group in large else min(SHARES, key=lambda split: filled[split] / SHARES[split])
        filled[home[group]] += sizes[group]
    return np.array([home[group] for group in groups], dtype=object)


@cache
def bundled(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a bundled file, by name; read once."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def standardized(z: Mapping[str, np.ndarray], present: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Every modality centred on the mean of its observed rows among these, and scaled so that their mean square is 1."""
    done = {}
    for j, (name, values) in enumerate(z.items()):
        seen = present[:, j] & rows
        centred = values - values[seen].mean(axis=0)
        done[name] = centred / np.sqrt(np.mean(centred[seen] ** 2))
    return done
