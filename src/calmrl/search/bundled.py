"""Bundled data sets as collections: which encoders made their features, how new vectors are reduced, and their pictures."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from calmrl.search.collection import Collection
from calmrl.search.sources import OpenSource

ENCODERS_OF = {
    "stamps": {"image": "efficientnet_lite0", "text": "minilm", "speech": "whisper_base", "sound": "yamnet"},
    "emoji": {
        "image": "efficientnet_lite0",
        "drawing": "efficientnet_lite0",
        "text": "minilm",
        "keywords": "minilm",
        "speech": "whisper_base",
    },
}


def with_thumbnails(opened: OpenSource, collection: Collection) -> Collection:
    """The pictures of the emoji, which lie beside their features."""
    if opened.type == "dataset" and opened.root == "emoji":
        from calmrl.datasets.emoji import PICTURES, thumbnail

        def picture(row: int) -> bytes | None:
            has = dict(zip(collection.z, collection.present[row], strict=True))
            name = next((name for name in PICTURES if has[name]), None)
            return None if name is None else thumbnail(collection.known[row].id, name)

        collection.thumbnail = picture
    return collection


def known_vector(dataset: str, modality: str, value: Any) -> np.ndarray | None:
    """The vector of a word for which the data set has one, so that it can be searched without an encoder."""
    if dataset != "emoji" or modality not in ("text", "keywords") or find_spec("calmrl.datasets.emoji") is None:
        return None
    from calmrl.datasets.emoji import query_vectors

    return query_vectors().get(value) if isinstance(value, str) else None


def reduced(dataset: str, encoder: str, vectors: np.ndarray) -> np.ndarray:
    """Vectors of an encoder in the form that the data set stores."""
    if dataset != "emoji":
        return vectors
    from calmrl.datasets.emoji import REDUCED, reduce_features

    return reduce_features(encoder, vectors) if encoder in REDUCED else vectors
