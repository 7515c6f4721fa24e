"""What a few queries find, as a report shows it: captions, ranks, small pictures and the beginnings of sounds."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl.data.features.feature_set import ROW, FeatureSet, files_of, relevance_of
from calmrl.data.media.manifest import AUDIO, IMAGE, VIDEO
from calmrl.data.media.problems import Unreadable
from calmrl.data.media.streams import clip
from calmrl.datasets.registry import indexing_of
from calmrl.metrics.model_rows import Vectors, neighbours


def nearest_examples(
    features: FeatureSet, home: np.ndarray, z: Vectors, present: torch.Tensor, relevant_by: str = ROW
) -> list[dict[str, Any]]:
    """What texts (or the first modality) find in the next modality, among the rows that have both.

    Parameters
    ----------
    features : FeatureSet
        The data; without texts there is nothing to show.
    home : ndarray (n,)
        Which rows of `features` the test rows are.
    z, present
        Representations of the test rows, and which of them are there.
    relevant_by : str
        What counts as found: the query's own row ("id"), or all items with its "text", "labels" or another column.
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
    every = relevance_of(features, relevant_by)
    relevant = None if every is None else every[rows].tolist()
    queries = neighbours({name: z[name][both] for name in (asks, gives)}, captions, ids, asks, gives, relevant)
    row_of = dict(zip(ids, rows, strict=True))
    for query in queries:
        query["relevant_by"] = relevant_by
        asked = files_of(features, row_of[query["id"]])
        query |= _media({asks: asked[asks]} if asks in asked else {})
        for item in query["found"]:
            row = row_of[item["id"]]
            item |= _media(files_of(features, row)) | {"picture": picture_of(features, row)}
    return queries


def caption_of(text: Any, name: str) -> str:
    """The first caption of an item, or its id."""
    if isinstance(text, (list, tuple)):
        text = text[0] if len(text) else None
    return str(text) if text else name


def picture_of(features: FeatureSet, row: int) -> str | None:
    """A small picture of an item as a data URI; None if none is known."""
    has = [name for name, here in zip(features.names, np.asarray(features.present[row]), strict=True) if here]
    webp = indexing_of(features.name).thumbnail(str(features.ids[row]), has)
    return _media(files_of(features, row))["picture"] if webp is None else _picture(webp)


def _media(files: dict[str, Path]) -> dict[str, str | None]:
    """The first picture and the first sound among files, as data URIs; None where there is none that can be read."""
    small = next((small for small in map(_small, files.values()) if small is not None), None)
    sound = next((mp3 for mp3 in map(_beginning, files.values()) if mp3 is not None), None)
    return {
        "picture": None if small is None else _picture(small),
        "sound": None if sound is None else "data:audio/mpeg;base64," + base64.b64encode(sound).decode(),
    }


def _picture(webp: bytes) -> str:
    return "data:image/webp;base64," + base64.b64encode(webp).decode()


def _small(path: Path) -> bytes | None:
    from calmrl.search.collection import thumbnail

    return thumbnail(path) if str(path).lower().endswith((*IMAGE, *VIDEO)) else None


def _beginning(path: Path) -> bytes | None:
    if not str(path).lower().endswith(AUDIO):
        return None
    try:
        return clip(path)
    except Unreadable:
        return None
