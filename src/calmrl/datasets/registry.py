"""The data sets by name, and the function that opens one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from calmrl._support.registry import Registry
from calmrl.errors import InputError

if TYPE_CHECKING:
    from calmrl.data.features.feature_set import FeatureSet


DATASETS: Registry[Callable[..., FeatureSet]] = Registry(
    "data set",
    {
        "stamps": "calmrl.datasets.stamps:stamps",
        "emoji": "calmrl.datasets.emoji:emoji",
        "digits": "calmrl.datasets.digits:digits",
        "mfeat": "calmrl.datasets.mfeat:mfeat",
        "world": "calmrl.datasets.world:world",
        "synth": "calmrl.datasets.world:synth",
    },
)


def load_dataset(name: str, **options: Any) -> FeatureSet:
    """The data set of this name, always with the same rows.

    Parameters
    ----------
    name : str
        A name of DATASETS.
    **options
        Those of the function in DATASETS.

    Returns
    -------
    FeatureSet
        `.z, .present, .ids, .split, .labels, .text, .source, .name`.

    Examples
    --------
    >>> load_dataset("digits").present.shape
    (1797, 4)
    """
    names = list(DATASETS.signature(name).parameters)
    for option in options:
        if option not in names:
            raise InputError(f'data set "{name}" has no option "{option}"; it has {", ".join(names) or "none"}')
    return DATASETS[name](**options)
