"""One space for all modalities: is there one already, how far apart are the modalities in it, do partners meet?"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from calmrl.workflows.diagnose.models import FOLDS, Arrays, FoldedRows

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
