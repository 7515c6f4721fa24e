"""Handwritten digits of scikit-learn, cut into four quadrants: small, real, and everywhere at hand."""

import numpy as np

from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.preparation import split_by_group


def digits() -> FeatureSet:
    """1,797 images of 8 x 8 pixels as four modalities, the 4 x 4 quadrants; labels are the digits.

    Pixels that hardly vary (standard deviation <= 0.05) are dropped, the others are standardised over all rows.
    """
    from sklearn.datasets import load_digits

    raw = load_digits()
    z = {}
    for i, row in enumerate(("top", "bottom")):
        for j, column in enumerate(("left", "right")):
            block = raw.images[:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4].reshape(len(raw.images), 16)
            z[f"{row}_{column}"] = standardize(block[:, block.std(axis=0) > 0.05])
    ids = [f"digit-{number:04d}" for number in range(len(raw.target))]
    return FeatureSet(
        z,
        np.ones((len(ids), len(z)), dtype=bool),
        meta_table(len(ids), ids=ids, split=split_by_group(ids), labels=raw.target),
        name="digits",
        source="scikit-learn load_digits: test part of the UCI optical recognition of handwritten digits (CC BY 4.0)",
    )


def standardize(values: np.ndarray) -> np.ndarray:
    """Columns with mean 0 and standard deviation 1, as float32."""
    return ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32)
