"""`datasets.Dataset`: the same columns as a frame."""

from __future__ import annotations

from typing import Any

from calmrl.data.features.arrow_table import Groups, from_arrow, to_arrow
from calmrl.data.features.feature_set import FeatureSet
from calmrl.errors import need


def to_dataset(features: FeatureSet) -> Any:
    """A `datasets.Dataset` in memory: a column of lists per modality, null where it is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_dataset(to_dataset(features)).present.tolist()
    [[True, True], [True, False]]
    """
    datasets = need("datasets", "interop", "A Dataset")
    return datasets.Dataset(datasets.table.InMemoryTable(to_arrow(features)))


def from_dataset(dataset: Any, modalities: Groups | None = None) -> FeatureSet:
    """Features from a `datasets.Dataset`, in its order of rows; `modalities` as in `from_pandas`.

    Examples
    --------
    >>> import numpy as np
    >>> from calmrl.data import FeatureSet
    >>> features = FeatureSet({"image": np.ones((2, 3)), "text": np.array([[1.0, 2.0], [np.nan, np.nan]])})
    >>> from_dataset(to_dataset(features)).present.tolist()
    [[True, True], [True, False]]
    """
    return from_arrow(dataset.with_format("arrow")[:], modalities, origin="the Dataset")
