"""What an estimator takes besides a dict: one 2-D array whose columns are the modalities, or an object that holds features.

The first is the form of scikit-learn: `blocks` says which columns belong together. The second are the objects of
`calmrl.interop`, such as MuData and frames; the answer is then an object of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted, validate_data

from calmrl.convention import Array, check_names
from calmrl.errors import InputError
from calmrl.interop.containers import from_object, is_container

Columns = Sequence[int | str]
Blocks = Mapping[str, int | Columns] | Sequence[int] | None


def is_chunks(z: Any) -> bool:
    """Whether `z` is an iterable of (z, present) chunks rather than one array."""
    if isinstance(z, (np.ndarray, str, bytes)) or hasattr(z, "__array__") or hasattr(z, "toarray"):
        return False
    if isinstance(z, (list, tuple)):
        return bool(z) and isinstance(z[0], (list, tuple)) and len(z[0]) == 2 and isinstance(z[0][0], Mapping)
    return isinstance(z, Iterable)


def is_matrix(z: Any) -> bool:
    """Whether `z` is one array or frame, or a list of rows."""
    rows = isinstance(z, (list, tuple)) and len(z) > 0 and isinstance(z[0], (list, tuple)) and not is_chunks(z)
    return rows or any(hasattr(z, name) for name in ("__array__", "toarray", "__dataframe__"))


def block_columns(blocks: Blocks, n_columns: int, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """{modality: numbers of its columns} from the `blocks` argument.

    None is one block; a list of widths, or a dict name -> width, are blocks side by side; a dict name -> list of column
    names or numbers may be in any order, but every column must be in one block.
    """
    if blocks is None:
        return {"x": np.arange(n_columns)}
    named = dict(blocks) if isinstance(blocks, Mapping) else {f"block{j}": width for j, width in enumerate(blocks)}
    check_names(list(named))
    if any(isinstance(columns, (list, tuple, np.ndarray)) for columns in named.values()):
        return _chosen_columns(named, n_columns, names)
    wrong = {name: width for name, width in named.items() if not isinstance(width, (int, np.integer)) or width < 1}
    if wrong or sum(named.values()) != n_columns:  # type: ignore[arg-type]
        raise InputError(
            f"blocks must be positive widths that add up to the {n_columns} columns; got "
            + ", ".join(f"{name}: {width}" for name, width in named.items())
        )
    edges = np.cumsum([0, *named.values()])
    return {name: np.arange(lo, hi) for name, lo, hi in zip(named, edges, edges[1:], strict=False)}


def _chosen_columns(named: Mapping[str, Any], n_columns: int, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    places = {name: j for j, name in enumerate(names if names is not None else [])}
    chosen = {}
    for block, columns in named.items():
        unknown = [c for c in columns if (c not in places if isinstance(c, str) else not 0 <= int(c) < n_columns)]
        if unknown or not len(columns):
            have = (
                f"names are {', '.join(list(places)[:5])}, ..." if places else "the columns have no names; use numbers"
            )
            raise InputError(f"blocks: {block!r} names column {unknown[:1]}, which the input does not have ({have})")
        chosen[block] = np.array([places[c] if isinstance(c, str) else int(c) for c in columns])
    used = np.concatenate(list(chosen.values()))
    if len(used) != n_columns or len(set(used.tolist())) != n_columns:
        raise InputError(
            f"blocks name {len(set(used.tolist()))} different columns, {len(used)} in all, of an input that has {n_columns}; "
            "every column belongs to one block. To leave columns out, use a ColumnTransformer"
        )
    return chosen


def _block(array: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Some columns; a view where they stand side by side."""
    side_by_side = bool((np.diff(at) == 1).all())
    return array[:, at[0] : at[-1] + 1] if side_by_side else np.ascontiguousarray(array[:, at])


class BlockColumns:
    """What an estimator with a `blocks` argument needs to take and return one array, or an object that holds features."""

    blocks: Blocks

    def _holds_features(self, z: Any) -> bool:
        """Whether `z` is an object with named modalities; with `blocks` a frame is one matrix."""
        return is_container(z) and not (self.blocks is not None and hasattr(z, "columns"))

    def _as_dict(self, z: Any, present: Array | None, reset: bool) -> tuple[Any, Array | None]:
        """(dict, mask) of what was given; chunks as they are. A second 1-D argument is scikit-learn's y, and not used."""
        if self._holds_features(z):
            if getattr(present, "ndim", 0) == 2:
                raise InputError(f"{type(z).__name__} says itself what is missing; leave out present")
            features = from_object(z)
            return features.z, np.asarray(features.present)
        if isinstance(z, Mapping) or is_chunks(z):
            return z, present
        finite = "allow-nan" if self.blocks is not None else True
        array = validate_data(self, z, dtype=[np.float64, np.float32], ensure_all_finite=finite, reset=reset)
        places = self._places(array.shape[1], z)
        is_mask = getattr(present, "ndim", 0) == 2
        return {name: _block(array, at) for name, at in places.items()}, present if is_mask else None

    def _in_kind(self, completed: dict[str, Array], given: Any) -> Any:
        """A dict for a dict; one array, with its columns in their order, for one array."""
        if isinstance(given, Mapping):
            return completed
        places = self._places(sum(block.shape[1] for block in completed.values()), given)
        array = np.concatenate(list(completed.values()), axis=1)
        return array[:, np.argsort(np.concatenate(list(places.values())))]

    def _places(self, n_columns: int, given: Any) -> dict[str, np.ndarray]:
        """The columns of each block, by the names that `fit` saw, or that the frame has."""
        names = getattr(self, "feature_names_in_", getattr(given, "columns", None))
        return block_columns(self.blocks, n_columns, names)

    def _plain_blocks(self) -> Any:
        """`blocks` as JSON holds it."""
        if self.blocks is None or not isinstance(self.blocks, Mapping):
            return None if self.blocks is None else [int(width) for width in self.blocks]
        return {
            name: int(part) if np.ndim(part) == 0 else [c if isinstance(c, str) else int(c) for c in part]  # type: ignore
            for name, part in self.blocks.items()
        }

    def _input_columns(self) -> list[str] | None:
        """Names of the columns that `fit` saw, if they had names."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]

    def _set_input_columns(self, names: list[str] | None) -> None:
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
            self.n_features_in_ = len(names)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """For 2-D input: the columns keep their names."""
        check_is_fitted(self)
        return _check_feature_names_in(self, input_features)

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = self.blocks is not None
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
