"""Hide modalities on purpose, to see what a method does without them.

The result is a subset of `present` and leaves every row at least one of the modalities it had.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from calmrl._support.registry import lookup
from calmrl.arrays import Array, blocks_of_rows, to_tensor
from calmrl.errors import InputError


def hide(
    present: Array, rate: float | None, generator: np.random.Generator, kind: str = "mcar", **options: Any
) -> Array:
    """`present` with some more blocks False.

    - `kind="mcar"` (blocks at random, whatever they are): keep one modality per row, drawn uniformly, then choose
      round(rate * observed blocks) of the other blocks without replacement.
    - `kind="value", values=z, strength=2.0` (informative missingness): the same, but a block goes first the larger
      strength * s + Gumbel noise, where s is its standardised projection on a random direction; `values` may also be s
      itself, an (N, k) array.
    - `kind="source", groups=[(0, 2), (1, 2)]` ("video-text" rows, "audio-text" rows, ...): round(rate * N) rows come from
      an incomplete source each and keep only that source's columns; the source is drawn uniformly from those that leave
      the row something.
    - `kind="one", column=None`: round(rate * N) rows lose one modality each, drawn uniformly, or always this column.
    - `kind="alone"`: round(rate * N) rows keep one modality each, drawn uniformly.
    - `kind="all-but", complete=50`: of the rows that have everything 50 stay so, the others lose one modality each, drawn
      uniformly. Rows that lack something stay as they are. For one state of the generator, the rows that stay complete
      with a smaller number are among those that do with a larger one.

    Parameters
    ----------
    present : array or tensor of bool (N, k)
    rate : float or None
        Share of the observed blocks ("mcar", "value") or of the rows that is hidden. None for "all-but".
    generator : numpy.random.Generator
    kind : {"mcar", "value", "source", "one", "alone", "all-but"}
    **options
        Of the kind, as above.

    Returns
    -------
    array or tensor of bool (N, k)
        As `present`: NumPy in, NumPy out, torch in, torch out.

    Examples
    --------
    >>> int(hide(np.ones((100, 3), dtype=bool), 0.3, np.random.default_rng(0)).sum())
    210
    """
    function = lookup(MECHANISMS, kind, "kind of missingness")
    allowed = [name for name in inspect.signature(function).parameters if name not in ("mask", "rate", "generator")]
    for name in options:
        if name not in allowed:
            raise InputError(f'hide(kind="{kind}") has no option "{name}"; it has {", ".join(allowed) or "none"}')
    if not isinstance(generator, np.random.Generator):
        raise InputError(f"generator must be a numpy Generator, such as np.random.default_rng(0); got {generator!r}")
    mask = to_tensor(present).cpu().numpy()
    if mask.ndim != 2 or mask.dtype != bool:
        raise InputError(f"present must be a bool array of shape (N, k); got {mask.dtype} of shape {mask.shape}")
    if kind == "all-but":
        if rate is not None:
            raise InputError(f'hide(kind="all-but") takes complete=, a number of rows, and no rate; got {rate}')
    elif rate is None or not 0 <= rate <= 1:
        raise InputError(f"rate must lie between 0 and 1; got {rate}")
    left = mask & ~function(mask, rate, generator, **options)
    return torch.from_numpy(left).to(present.device) if isinstance(present, torch.Tensor) else left


def _mcar(mask: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
    slots = np.flatnonzero(_spare(mask, generator))
    hidden = np.zeros(mask.size, dtype=bool)
    hidden[generator.choice(slots, _blocks(mask, rate, len(slots)), replace=False)] = True
    return hidden.reshape(mask.shape)


def _value(
    mask: np.ndarray,
    rate: float,
    generator: np.random.Generator,
    values: Mapping[str, Array] | np.ndarray | None = None,
    strength: float = 2.0,
) -> np.ndarray:
    if values is None:
        raise InputError('hide(kind="value") needs values=: the z that belongs to present, or (N, k) scores')
    scores = _scores(values, mask, generator) if isinstance(values, Mapping) else np.asarray(values, dtype=float)
    if scores.shape != mask.shape:
        raise InputError(f"values have shape {scores.shape} but present has {mask.shape}")
    slots = np.flatnonzero(_spare(mask, generator))
    keys = strength * scores.reshape(-1)[slots] + generator.gumbel(size=len(slots))
    first = np.argsort(-keys, kind="stable")[: _blocks(mask, rate, len(slots))]
    hidden = np.zeros(mask.size, dtype=bool)
    hidden[slots[first]] = True
    return hidden.reshape(mask.shape)


def _source(
    mask: np.ndarray,
    rate: float,
    generator: np.random.Generator,
    groups: Sequence[Sequence[int]] | None = None,
) -> np.ndarray:
    k = mask.shape[1]
    if not groups or any(not 0 <= column < k for group in groups for column in group):
        raise InputError(
            f'hide(kind="source") needs groups=: the columns (0 to {k - 1}) that each source records, for instance '
            f"[(0, 2), (1, 2)]; got {groups}"
        )
    records = np.zeros((len(groups), k), dtype=bool)
    for row, group in zip(records, groups, strict=True):
        row[list(group)] = True
    rows = generator.choice(len(mask), round(rate * len(mask)), replace=False)
    hidden = np.zeros_like(mask)
    leaves = np.any(mask[rows, None, :] & records, axis=2)  # (rows, groups): the source has something of this row
    some = np.any(leaves, axis=1)
    rows, leaves = rows[some], leaves[some]
    hidden[rows] = ~records[_draw(leaves, generator)]
    return hidden


def _some(eligible: np.ndarray, rate: float, n: int, generator: np.random.Generator, what: str) -> np.ndarray:
    """A share `rate` of n rows, drawn among the eligible; an error, `what` with their number, where they are too few."""
    wanted = round(rate * n)
    if wanted > len(eligible):
        raise InputError(
            f"{wanted} of {n} rows should {what.format(len(eligible))}; use a rate of at most "
            f"{len(eligible) / max(1, n):.3f}"
        )
    return generator.choice(eligible, wanted, replace=False)


def _one(mask: np.ndarray, rate: float, generator: np.random.Generator, column: int | None = None) -> np.ndarray:
    n, k = mask.shape
    if column is not None and not 0 <= column < k:
        raise InputError(f"column must be one of 0 to {k - 1}; got {column}")
    candidates = mask if column is None else mask & (np.arange(k) == column)
    eligible = np.flatnonzero(candidates.any(axis=1) & (mask.sum(axis=1) > 1))
    rows = _some(eligible, rate, n, generator, "lose a modality but only {} can and keep another")
    hidden = np.zeros_like(mask)
    hidden[rows, _draw(candidates[rows], generator)] = True
    return hidden


def _alone(mask: np.ndarray, rate: float, generator: np.random.Generator) -> np.ndarray:
    several = np.flatnonzero(mask.sum(axis=1) > 1)
    rows = _some(several, rate, len(mask), generator, "keep one modality only but {} have several")
    hidden = np.zeros_like(mask)
    hidden[rows] = True
    hidden[rows, _draw(mask[rows], generator)] = False
    return hidden


def _all_but(mask: np.ndarray, rate: None, generator: np.random.Generator, complete: int | None = None) -> np.ndarray:
    whole = np.flatnonzero(mask.all(axis=1))
    if complete is None or not 0 <= complete <= len(whole):
        raise InputError(
            f'hide(kind="all-but") needs complete=, how many of the {len(whole)} complete rows stay so; got {complete}'
        )
    columns = _draw(mask[whole], generator)
    losing = generator.permutation(len(whole))[complete:]
    hidden = np.zeros_like(mask)
    hidden[whole[losing], columns[losing]] = mask.shape[1] > 1
    return hidden


MECHANISMS: dict[str, Callable[..., np.ndarray]] = {
    "mcar": _mcar,
    "value": _value,
    "source": _source,
    "one": _one,
    "alone": _alone,
    "all-but": _all_but,
}


def _draw(allowed: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One True column per row, uniformly."""
    pick = generator.integers(0, allowed.sum(axis=1))
    return np.argmax(np.cumsum(allowed, axis=1) > pick[:, None], axis=1)


def _spare(mask: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The observed blocks that may go when one modality per row, drawn uniformly, stays."""
    spare = mask.copy()
    rows = np.flatnonzero(mask.any(axis=1))
    spare[rows, _draw(mask[rows], generator)] = False
    return spare


def _blocks(mask: np.ndarray, rate: float, spare: int) -> int:
    observed = int(mask.sum())
    wanted = round(rate * observed)
    if wanted > spare:
        raise InputError(
            f"{wanted} of {observed} blocks should be hidden but every row keeps one; use a rate of at most "
            f"{spare / max(1, observed):.3f}"
        )
    return wanted


def _scores(z: Mapping[str, Array], mask: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(N, k) projections on one random direction per modality, standardised over the observed rows."""
    scores = np.zeros(mask.shape)
    for j, array in enumerate(z.values()):
        direction = torch.from_numpy(generator.normal(size=array.shape[1]))
        column = np.empty(len(array))
        for start, stop in blocks_of_rows(len(array), array.shape[1] * 8):
            column[start:stop] = (to_tensor(array[start:stop]).detach().cpu().double() @ direction).numpy()
        seen = column[mask[:, j]]
        if len(seen):
            scores[mask[:, j], j] = (seen - seen.mean()) / (seen.std() or 1.0)
    return scores
