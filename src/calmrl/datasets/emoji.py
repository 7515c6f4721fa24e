"""Emoji: 1,601 emoji drawn by two hands, with English and French names, further keywords and spoken names."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

import numpy as np

from calmrl._support.registry import lookup
from calmrl.data.features.directory import meta_table
from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets.preparation import bundled, standardized
from calmrl.datasets.registry import Indexing
from calmrl.errors import InputError

BUNDLE = Path(__file__).with_name("emoji.npz")
THUMBNAILS = Path(__file__).with_name("emoji_thumbnails.npz")
NOTICE = Path(__file__).with_name("emoji_NOTICE.txt")  # licences of the data
MODALITIES = ("image", "drawing", "text", "keywords", "french", "speech")
PICTURES = ("image", "drawing")  # the modalities that have thumbnails
REDUCED = {  # encoder -> modalities
    "efficientnet_lite0": ("image", "drawing"),
    "use_multilingual": ("french",),
    "whisper_base": ("speech",),
}
SPLITS = {"concept": "split", "subgroup": "split_subgroup"}


def emoji(split: str = "concept", standardize: bool = True) -> FeatureSet:
    """1,601 emoji: image and drawing (256 wide), English name, keywords (384), French name, spoken French (256).

    Labels are the 8 groups of Unicode; the column `subgroup` names the 96 finer ones, `group` the concept, `name` the
    name in the Unicode standard, `emoji` the characters, `keywords` and `french` the words behind these modalities.

    Parameters
    ----------
    split : {"concept", "subgroup"}
        Keep the variants of a concept together, or whole subgroups (harder).
    standardize : bool
        Centre every feature and divide each modality by one number, both measured on train; otherwise features are as
        `reduce_features` returns them.

    Examples
    --------
    >>> emoji().present.shape
    (1601, 6)
    """
    saved = bundled(BUNDLE)
    present, home = saved["present"].copy(), saved[lookup(SPLITS, split, "split of emoji")]
    z = {name: saved[name].astype(np.float32) for name in MODALITIES}
    z = standardized(z, present, home == "train") if standardize else z
    columns = {name: _words(saved[f"about_{name}"]) for name in ("emoji", "name", "subgroup", "keywords", "french")}
    return FeatureSet(
        z,
        present,
        meta_table(
            len(present),
            ids=saved["ids"],
            split=home,
            labels=saved["label"],
            text=_words(saved["caption"]),
            columns={**columns, "group": saved["group"]},
        ),
        name="emoji",
        source="Noto Color Emoji 2.042, Twemoji 15.0.0, CLDR 41, eSpeak NG 1.51; docs/reference/emoji.md",
    )


def thumbnail(item: str, modality: str = "image") -> bytes:
    """The small picture of an emoji, as the bytes of a WebP file of at most 56 pixels.

    Parameters
    ----------
    item : str
        The id of an emoji, for instance "dog-face".
    modality : {"image", "drawing"}
        Noto or Twemoji.

    Examples
    --------
    >>> thumbnail("dog-face")[:4]
    b'RIFF'
    """
    if modality not in PICTURES:
        raise InputError(f'emoji have no thumbnails of "{modality}"; choose one of {", ".join(PICTURES)}')
    saved = bundled(THUMBNAILS)
    row = lookup(_rows(), item, "emoji")
    ends = saved[f"{modality}_ends"]
    return saved[modality][ends[row - 1] if row else 0 : ends[row]].tobytes()


def query_vectors() -> dict[str, np.ndarray]:
    """Everyday words and their vectors in the space of `text`: to search without a text encoder.

    The vectors are as the encoder `minilm` returns them; they belong to features that are not standardised
    (`load_dataset("emoji", standardize=False)`). None of the words is the name of an emoji.

    Examples
    --------
    >>> query_vectors()["birthday"].shape
    (384,)
    """
    saved = bundled(BUNDLE)
    return dict(zip(saved["queries"].tolist(), saved["query_vectors"].astype(np.float32), strict=True))


def reduce_features(encoder: str, features: np.ndarray) -> np.ndarray:
    """y = (x - centre) basis: from the features of an encoder to the 256 that the collection stores.

    Parameters
    ----------
    encoder : {"efficientnet_lite0", "use_multilingual", "whisper_base"}
        That of `image` and `drawing`, of `french`, of `speech`; features of `minilm` are not reduced.
    features : ndarray (N, d)
        As `load_encoder(encoder).encode` returns them.

    Returns
    -------
    ndarray (N, 256)
        In the space of features that are not standardised.
    """
    if encoder not in REDUCED:
        raise InputError(f'no reduction for encoder "{encoder}"; there is one for {", ".join(REDUCED)}')
    saved = bundled(BUNDLE)
    centre, basis = saved[f"{encoder}_centre"], saved[f"{encoder}_basis"].astype(np.float32)
    values = np.asarray(features, dtype=np.float32)
    if values.ndim != 2 or values.shape[1] != len(centre):
        raise InputError(f"features of {encoder} have shape (N, {len(centre)}); got {values.shape}")
    return (values - centre) @ basis


def _picture(item: str, modalities: Collection[str]) -> bytes | None:
    return next((thumbnail(item, name) for name in PICTURES if name in modalities), None)


def _word_vector(modality: str, word: str) -> np.ndarray | None:
    return query_vectors().get(word) if modality in ("text", "keywords") else None


def _reduced(encoder: str, features: np.ndarray) -> np.ndarray:
    return reduce_features(encoder, features) if encoder in REDUCED else features


INDEXING = Indexing(
    encoders={
        "image": "efficientnet_lite0",
        "drawing": "efficientnet_lite0",
        "text": "minilm",
        "keywords": "minilm",
        "speech": "whisper_base",
    },
    thumbnail=_picture,
    word_vector=_word_vector,
    reduce=_reduced,
)


def _words(values: np.ndarray) -> list[str | None]:
    return [str(value) or None for value in values]


@cache
def _rows() -> dict[str, int]:
    return {str(name): row for row, name in enumerate(bundled(BUNDLE)["ids"])}
