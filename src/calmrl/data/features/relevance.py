"""Which items count as found for a query: its own row, or all rows with the same value in a column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from calmrl.data.features.feature_set import FeatureSet

ROW = "id"  # the row itself


def relevance_of(features: FeatureSet, by: str = ROW) -> np.ndarray | None:
    """One value per row: rows with the same value are relevant to each other; None where that is the row alone.

    A row without a value in the column stands for itself.

    Parameters
    ----------
    features : FeatureSet
    by : str
        "id", "text", "labels" or another column of `features.meta`.
    """
    if by == ROW:
        return None
    keys = np.empty(len(features), dtype=object)
    for row, value in enumerate(relevance_texts(features.column(by))):
        keys[row] = ("row", row) if value is None else ("value", value)
    return keys


def relevance_texts(values: Iterable[Any]) -> list[str | None]:
    """Each value as a text, None where there is none; several captions are the same where all of them are."""
    return [_text(value) if _given(value) else None for value in values]


def _given(value: Any) -> bool:
    if isinstance(value, (str, bytes, list, tuple, np.ndarray)):
        return len(value) > 0
    return value is not None and value == value  # NaN is not itself


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, (list, tuple, np.ndarray)) else str(value)
