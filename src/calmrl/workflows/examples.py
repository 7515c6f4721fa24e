"""What a few queries find, as a report shows it: captions, ranks and small pictures of the items."""

import base64
from typing import Any

import numpy as np
import torch

from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.item_files import files_of
from calmrl.data.media.suffixes import IMAGE, VIDEO
from calmrl.metrics.model_rows import Vectors, neighbours


def nearest_examples(features: FeatureSet, home: np.ndarray, z: Vectors, present: torch.Tensor) -> list[dict[str, Any]]:
    """What texts (or the first modality) find in the next modality, among the rows that have both.

    Parameters
    ----------
    features : FeatureSet
        The data; without texts there is nothing to show.
    home : ndarray (n,)
        Which rows of `features` the test rows are.
    z, present
        Representations of the test rows, and which of them are there.
    """
    if features.text is None or len(z) < 2:
        return []
    names = list(z)
    asks = "text" if "text" in names else names[0]
    gives = next(name for name in names if name != asks)
    both = (present[:, names.index(asks)] & present[:, names.index(gives)]).nonzero()[:, 0]
    rows = [int(home[i]) for i in both.tolist()]
    if not rows:
        return []
    ids = [str(features.ids[row]) for row in rows]
    captions = [caption_of(features.text[row], name) for row, name in zip(rows, ids, strict=True)]
    queries = neighbours({name: z[name][both] for name in (asks, gives)}, captions, ids, asks, gives)
    row_of = dict(zip(ids, rows, strict=True))
    for query in queries:
        for item in query["found"]:
            item["picture"] = picture_of(features, row_of[item["id"]])
    return queries


def caption_of(text: Any, name: str) -> str:
    """The first caption of an item, or its id."""
    if isinstance(text, (list, tuple)):
        text = text[0] if len(text) else None
    return str(text) if text else name


def picture_of(features: FeatureSet, row: int) -> str | None:
    """A small picture of an item as a data URI; None if none is known."""
    webp = _bundled(features, row)
    if webp is None:
        webp = next((small for small in map(_small, files_of(features, row).values()) if small is not None), None)
    return None if webp is None else "data:image/webp;base64," + base64.b64encode(webp).decode()


def _small(path: Any) -> bytes | None:
    from calmrl.search.thumbnails import thumbnail

    return thumbnail(path) if str(path).lower().endswith((*IMAGE, *VIDEO)) else None


def _bundled(features: FeatureSet, row: int) -> bytes | None:
    """The picture of an emoji, which lies beside its features."""
    if features.name != "emoji":
        return None
    from calmrl.datasets.emoji import PICTURES, thumbnail

    has = dict(zip(features.names, np.asarray(features.present[row]).tolist(), strict=True))
    name = next((name for name in PICTURES if has.get(name)), None)
    return None if name is None else thumbnail(str(features.ids[row]), name)
