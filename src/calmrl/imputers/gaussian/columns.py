"""The scikit-learn face: one 2-D array whose columns are the modalities side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from calmrl.convention import Array, check_names
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


class BlockColumns:
    """What an estimator with a `blocks` argument needs to take and return one array."""

    blocks: Blocks

    def _as_dict(self, z: Any, present: Array | None, reset: bool) -> tuple[Any, Array | None]:
        """A 2-D array becomes a dict of its blocks; a second 1-D argument there is scikit-learn's y, and not used."""
        if isinstance(z, Mapping) or is_chunks(z):
            return z, present
        finite = "allow-nan" if self.blocks is not None else True
        array = validate_data(self, z, dtype=[np.float64, np.float32], ensure_all_finite=finite, reset=reset)
        self._widths = block_widths(self.blocks, array.shape[1])
        is_mask = getattr(present, "ndim", 0) == 2
        return split_columns(array, self._widths), present if is_mask else None

    def _columns(self, completed: dict[str, Array], given: Any) -> Any:
        """A dict for a dict; one array for one array."""
        return completed if isinstance(given, Mapping) else np.concatenate(list(completed.values()), axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """For 2-D input: the columns keep their names."""
        check_is_fitted(self)
        return _check_feature_names_in(self, input_features)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = self.blocks is not None
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
