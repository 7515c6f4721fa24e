"""Features with missing modalities, before and after imputing, and what must be equal after a round trip."""

from __future__ import annotations

import numpy as np

from calmrl import GaussianImputer
from calmrl.data import FeatureSet
from calmrl.data.features.directory import meta_table
from calmrl.interop import impute_object

ROWS = 24
WIDTHS = {"image": 4, "text": 3}


def observed(dtype: str = "float32", captions: bool = True) -> FeatureSet:
    """Two modalities, of which one is called "text", and rows that lack one of them."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(ROWS, 2))
    values = {name: shared @ rng.normal(size=(2, d)) + 0.3 * rng.normal(size=(ROWS, d)) for name, d in WIDTHS.items()}
    z = {name: block.astype(dtype) for name, block in values.items()}
    z["image"][:5] = np.nan
    z["text"][10:13] = np.nan
    meta = meta_table(
        ROWS,
        ids=[f"item {row}" for row in range(ROWS)],
        split=["train", "test"] * (ROWS // 2),
        labels=[row % 3 for row in range(ROWS)],
        text=[f"caption {row}" for row in range(ROWS)] if captions else None,
        columns={"year": [1900 + row for row in range(ROWS)]},
    )
    return FeatureSet(z, meta=meta)


def imputed(dtype: str = "float32") -> FeatureSet:
    features = observed(dtype)
    return impute_object(GaussianImputer(2, max_iter=100, tol=1e-2).fit(features), features)


def assert_same(ours: FeatureSet, theirs: FeatureSet) -> None:
    """Values, masks, deviations and what is known about the rows, to the bit."""
    assert list(ours.z) == list(theirs.z)
    np.testing.assert_array_equal(ours.present, theirs.present)
    for name in ours.z:
        assert ours.z[name].dtype == theirs.z[name].dtype
        np.testing.assert_array_equal(ours.z[name], theirs.z[name])
    assert (ours.imputed is None) == (theirs.imputed is None)
    assert (ours.std is None) == (theirs.std is None)
    if ours.imputed is not None:
        np.testing.assert_array_equal(ours.imputed, theirs.imputed)
        for name in ours.std:
            np.testing.assert_array_equal(ours.std[name], theirs.std[name])
    assert theirs.meta.select(ours.meta.column_names).equals(ours.meta)
