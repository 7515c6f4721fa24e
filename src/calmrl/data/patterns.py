"""Which modalities occur together: counts per pattern, as data and as a small table."""

from collections.abc import Sequence
from dataclasses import dataclass

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
