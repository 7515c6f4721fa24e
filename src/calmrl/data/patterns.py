"""Which modalities occur together: counts per pattern, as data and as a small table, and groups that rows connect."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from calmrl.arrays import Array, to_tensor
from calmrl.errors import InputError


@dataclass(frozen=True)
class ModalityPattern:
    """The rows that have exactly these modalities."""

    modalities: tuple[str, ...]
    rows: int
    share: float


def patterns(present: Array, names: Sequence[str]) -> list[ModalityPattern]:
    """The patterns that occur, most frequent first (then more modalities first, then in the order of `names`).

    Examples
    --------
    >>> [count] = patterns(np.array([[True, False]]), ["image", "text"])
    >>> count.modalities, count.rows
    (('image',), 1)
    """
    mask = to_tensor(present).cpu().numpy()
    if mask.ndim != 2 or mask.shape[1] != len(names):
        raise InputError(f"present has shape {mask.shape} but there are {len(names)} names ({', '.join(names)})")
    unique, counts = np.unique(mask, axis=0, return_counts=True)
    order = sorted(range(len(unique)), key=lambda i: (-counts[i], -unique[i].sum(), tuple(~unique[i])))
    return [
        ModalityPattern(
            tuple(name for name, here in zip(names, unique[i], strict=True) if here),
            int(counts[i]),
            counts[i] / len(mask),
        )
        for i in order
    ]


def rows_together(present: Array) -> np.ndarray:
    """(k, k): how many rows have both modalities."""
    mask = to_tensor(present).cpu().numpy().astype(np.int64)
    return np.asarray(mask.T @ mask)


@dataclass(frozen=True)
class Completeness:
    """How complete rows are: settings that lack as many blocks can differ much in complete rows and in pairs."""

    rows: int
    missing: float  # share of the blocks
    complete: float  # share of the rows that have every modality
    pairs: float  # share of all pairs of modalities, row by row, of which the row has both
    rarest: int  # rows that have both of the two modalities that are together least often


def completeness(present: Array, rows: Sequence[int] | None = None) -> Completeness:
    """What (N, k) blocks have in common; `rows` says how many rows each line of `present` stands for, by default one.

    Examples
    --------
    >>> import numpy as np
    >>> completeness(np.array([[True, True], [True, False]]))
    Completeness(rows=2, missing=0.25, complete=0.5, pairs=0.5, rarest=1)
    """
    mask = to_tensor(present).cpu().numpy().astype(np.int64)
    weights = np.ones(len(mask), dtype=np.int64) if rows is None else np.asarray(rows, dtype=np.int64)
    n, k = int(weights.sum()), mask.shape[1]
    together = (mask.T @ (mask * weights[:, None]))[np.triu_indices(k, 1)]  # rows that have both, pair by pair
    return Completeness(
        rows=n,
        missing=float(1 - weights @ mask.sum(axis=1) / max(1, n * k)) if n else 0.0,
        complete=float(weights[mask.all(axis=1)].sum() / max(1, n)),
        pairs=float(together.sum() / max(1, n * len(together))),
        rarest=int(together.min(initial=n)),
    )


def connected(together: np.ndarray, least: int = 1) -> list[list[int]]:
    """Groups of modalities that `least` rows or more connect, directly or through others; the largest group first.

    `together` counts the rows that have both of two modalities, (k, k), as `rows_together` does. A modality that nothing
    connects with another one is a group of its own.

    Examples
    --------
    >>> connected(rows_together(np.array([[True, False, True], [False, True, False]])))
    [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    for j in range(len(together)):
        touching = [group for group in groups if any(together[j, other] >= least for other in group)]
        groups = [group for group in groups if group not in touching] + [sorted([j, *chain(*touching)])]
    return sorted(groups, key=lambda group: (-len(group), group[0]))


def pattern_table(present: Array, names: Sequence[str]) -> str:
    """The patterns as text: one line each, a last line with the rows per modality.

    Examples
    --------
    >>> import numpy as np
    >>> "66.7%" in pattern_table(np.array([[True, True], [True, False], [True, False]]), ["image", "text"])
    True
    """
    counts = patterns(present, names)
    mask = to_tensor(present).cpu().numpy()
    totals = [str(int(total)) for total in mask.sum(axis=0)]
    lines = [[*names, "rows", "share"]]
    for pattern in counts:
        marks = ("yes" if name in pattern.modalities else "-" for name in names)
        lines.append([*marks, str(pattern.rows), f"{100 * pattern.share:.1f}%"])
    lines.append([*totals, str(len(mask)), "all"])
    widths = [*(max(len(name), len(total)) for name, total in zip(names, totals, strict=True)), 9, 6]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)
