"""Data to try things on: `load_dataset(name)` returns a `FeatureSet`; `DATASETS` is what there is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from calmrl._support.registry import lookup
from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.digits import digits
from calmrl.datasets.mfeat import mfeat
from calmrl.datasets.stamps import stamps
from calmrl.datasets.world import synth, world
from calmrl.errors import InputError

__all__ = ["DATASETS", "load_dataset"]

DATASETS: dict[str, Callable[..., FeatureSet]] = {
    "stamps": stamps,
    "digits": digits,
    "mfeat": mfeat,
    "world": world,
    "synth": synth,
}


def load_dataset(name: str, **options: Any) -> FeatureSet:
    """The data set of this name: `.z, .present, .ids, .split, .labels, .text, .source, .name`, always the same rows.

    The options are those of the function in `DATASETS`.
    """
    loader = lookup(DATASETS, name, "data set")
    known = list(inspect.signature(loader).parameters)
    for option in options:
        if option not in known:
            raise InputError(f'data set "{name}" has no option "{option}"; it has {", ".join(known) or "none"}')
    return loader(**options)
