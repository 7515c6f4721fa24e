"""The data sets by name, the function that opens one, and what an index of one needs besides its features."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calmrl._support.registry import Registry
from calmrl.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from calmrl.data.features.feature_set import FeatureSet


DATASETS: Registry[Callable[..., FeatureSet]] = Registry(
    "data set",
    {
        "stamps": "calmrl.datasets.stamps:stamps",
        "emoji": "calmrl.datasets.emoji:emoji",
        "characters": "calmrl.datasets.characters:characters",
        "digits": "calmrl.datasets.digits:digits",
        "mfeat": "calmrl.datasets.digits:mfeat",
        "world": "calmrl.datasets.world:world",
        "synth": "calmrl.datasets.world:synth",
    },
)


@dataclass(frozen=True)
class Indexing:
    """What an index of a data set needs besides its features; by default nothing.

    Attributes
    ----------
    encoders : mapping of str to str
        Modality -> the encoder that made its features, so that files and texts can be queries.
    thumbnail : function
        (id of an item, modalities that it has) -> a small image as the bytes of a WebP file, or None.
    word_vector : function
        (modality, word) -> its vector in the space of the features, or None: what can be searched without an encoder.
    reduce : function
        (encoder, its vectors) -> the vectors in the form that the data set stores.
    """

    encoders: Mapping[str, str] = field(default_factory=dict)
    thumbnail: Callable[[str, Collection[str]], bytes | None] = lambda item, modalities: None
    word_vector: Callable[[str, str], np.ndarray | None] = lambda modality, word: None
    reduce: Callable[[str, np.ndarray], np.ndarray] = lambda encoder, vectors: vectors


INDEXING: Registry[Indexing] = Registry(
    "indexed data set",
    {"stamps": "calmrl.datasets.stamps:INDEXING", "emoji": "calmrl.datasets.emoji:INDEXING"},
)


def indexing_of(name: str | None) -> Indexing:
    """What an index of a data set needs; of anything else, nothing."""
    return INDEXING[name] if name in INDEXING else Indexing()  # type: ignore[index]


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
