"""What one pass over all rows tells, and the sample of rows for everything that needs several passes."""

from dataclasses import dataclass

import numpy as np

from calmrl.arrays import LARGEST_ELSE, blocks_of_rows, release
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.patterns import connected, rows_together
from calmrl.errors import InputError

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


def linked(present: np.ndarray, least: int) -> list[list[int]]:
    """Groups of columns that `least` rows or more connect, directly or through others; the largest first."""
    return connected(rows_together(present), least)


def pick(z: dict[str, np.ndarray], present: np.ndarray, columns: list[int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """These modalities, and the rows that have one of them."""
    rows = present[:, columns].any(axis=1)
    names = list(z)
    return {names[j]: z[names[j]][rows] for j in columns}, present[rows][:, columns]
