"""The scikit-learn face: one 2-D array whose columns are the modalities side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calmrl.convention import check_names
from calmrl.errors import InputError

Blocks = Mapping[str, int] | Sequence[int] | None


def is_chunks(z: Any) -> bool:
    """Whether `z` is an iterable of (z, present) chunks rather than one array."""
    if isinstance(z, (np.ndarray, str, bytes)) or hasattr(z, "__array__") or hasattr(z, "toarray"):
        return False
    if isinstance(z, (list, tuple)):
        return bool(z) and isinstance(z[0], (list, tuple)) and len(z[0]) == 2 and isinstance(z[0][0], Mapping)
    return isinstance(z, Iterable)


def block_widths(blocks: Blocks, n_columns: int) -> dict[str, int]:
    """{modality: width} from the `blocks` argument: None is one block, a list of widths, or a dict name -> width."""
    if blocks is None:
        return {"x": n_columns}
    named = dict(blocks) if isinstance(blocks, Mapping) else {f"block{j}": width for j, width in enumerate(blocks)}
    check_names(list(named))
    wrong = {name: width for name, width in named.items() if not isinstance(width, (int, np.integer)) or width < 1}
    if wrong or sum(named.values()) != n_columns:
        raise InputError(
            f"blocks must be positive widths that add up to the {n_columns} columns; got "
            + ", ".join(f"{name}: {width}" for name, width in named.items())
        )
    return {name: int(width) for name, width in named.items()}


def split_columns(array: np.ndarray, widths: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Views of the array's columns, one per modality."""
    edges = np.cumsum([0, *widths.values()])
    return {name: array[:, lo:hi] for name, lo, hi in zip(widths, edges, edges[1:], strict=False)}
