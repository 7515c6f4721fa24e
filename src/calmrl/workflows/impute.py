"""Complete features on disk: fit an imputer on what is observed, fill in what is missing, block by block.

What was observed stays as it is, bit for bit. `present.npy` stays as it is too and still says what was observed;
`imputed.npy` says what was filled in. So whoever reads `z` with `present` goes on treating imputed blocks as missing,
and whoever wants them has to ask for `imputed`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from calmrl.convention import Array, blocks_of_rows, check
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.writer import FeatureWriter

BLOCK_BYTES = 1 << 25
OWN_COLUMNS = ("id", "split", "labels", "text")  # the writer has an argument for each


class Imputer(Protocol):
    """What is needed of an imputer: fit, and fill with standard deviations if asked to."""

    def fit(self, z: Mapping[str, Array], present: Array | None = None) -> Any: ...

    def impute(self, z: Mapping[str, Array], present: Array | None = None, *, return_std: bool = False) -> Any: ...


def complete(
    features: FeatureSet,
    imputer: Imputer,
    out: str | Path,
    *,
    std: bool = False,
    info: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FeatureSet:
    """Fit `imputer` on `features` and write the completed features to the new directory `out`.

    `std=True` also writes `<modality>.std.npy`, the standard deviation of every imputed value (0 where observed).
    `progress(done, rows)` is called after every block.
    """
    check(features.z, features.present)
    imputer.fit(features.z, features.present)
    widths = {name: array.shape[1] for name, array in features.z.items()}
    dtype = np.result_type(*(array.dtype for array in features.z.values()))
    rest = [name for name in features.meta.column_names if name not in OWN_COLUMNS]
    with FeatureWriter(
        out,
        widths,
        features.ids,
        dtype=dtype.name,
        split=features.split,
        labels=features.labels,
        text=features.text,
        columns={name: features.column(name) for name in rest},
        std=std,
        info=info,
    ) as writer:
        for start, stop in blocks_of_rows(len(features), sum(widths.values()) * dtype.itemsize, BLOCK_BYTES):
            z = {name: np.asarray(array[start:stop]) for name, array in features.z.items()}
            present = np.asarray(features.present[start:stop])
            filled, deviation = (
                imputer.impute(z, present, return_std=True) if std else (imputer.impute(z, present), None)
            )
            writer.fill(slice(start, stop), filled, present, imputed=~present, std=deviation)
            if progress is not None:
                progress(stop, len(features))
        return writer.finish()
