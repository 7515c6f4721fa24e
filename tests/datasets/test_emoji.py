"""The bundled emoji: what the data card says about them is true."""

from __future__ import annotations

import io
import re
from collections import defaultdict

import numpy as np
import pytest

from calmrl.data.features.feature_set import FeatureSet
from calmrl.datasets import load_dataset
from calmrl.datasets.emoji import (
    BUNDLE,
    INDEXING,
    MODALITIES,
    NOTICE,
    PICTURES,
    THUMBNAILS,
    query_vectors,
    reduce_features,
    thumbnail,
)
from calmrl.errors import InputError


@pytest.fixture(scope="module")
def emoji() -> FeatureSet:
    return load_dataset("emoji")


def homes(data: FeatureSet, keys: list[str]) -> dict[str, set[str]]:
    """Key -> the splits in which it occurs."""
    splits: dict[str, set[str]] = defaultdict(set)
    for key, split in zip(keys, data.split, strict=True):
        splits[key].add(split)
    return splits


def test_counts(emoji) -> None:
    assert len(emoji) == 1601
    letters = {ord(letter) for text in emoji.column("emoji") for letter in text}
    assert not letters & set(range(0x1F3FB, 0x1F400))  # no skin tones
    assert "Flags" not in set(emoji.labels)
    for j, name in ((2, "text"), (3, "keywords"), (4, "french"), (5, "french")):  # what has no words has no features
        np.testing.assert_array_equal(emoji.present[:, j], [words is not None for words in emoji.column(name)])
    assert dict(zip(emoji.names, emoji.present.sum(axis=0).tolist(), strict=True)) == {
        "image": 1601,
        "drawing": 1601,
        "text": 1580,
        "keywords": 1258,
        "french": 1580,
        "speech": 1580,
    }
    assert [emoji.z[name].shape[1] for name in MODALITIES] == [256, 256, 384, 384, 256, 256]
    assert len(set(emoji.labels)) == 8
    assert len(set(emoji.column("subgroup"))) == 96
    assert emoji.ids[0] == "grinning-face"
    assert emoji.text[0] == "grinning face"
    assert emoji.column("emoji")[0] == "\N{GRINNING FACE}"
    assert BUNDLE.stat().st_size < 7_000_000
    assert THUMBNAILS.stat().st_size < 4_000_000


def test_keywords_do_not_repeat_the_name(emoji) -> None:
    for name, keywords in zip(emoji.text, emoji.column("keywords"), strict=True):
        if keywords is not None:
            assert not set(re.findall(r"\w+", name.lower())) & set(re.findall(r"\w+", keywords.lower()))


@pytest.mark.parametrize("split", ["concept", "subgroup"])
def test_groups_are_in_one_split(split: str) -> None:
    data = load_dataset("emoji", split=split)
    share = {name: (data.split == name).mean() for name in ("train", "val", "test")}
    assert share["train"] == pytest.approx(0.7, abs=0.02)
    assert share["test"] == pytest.approx(0.2, abs=0.02)
    assert all(len(splits) == 1 for splits in homes(data, list(data.column("group"))).values())
    place = dict(zip(data.ids, data.split, strict=True))
    for one, other in (("dog", "dog-face"), ("red-apple", "green-apple"), ("sun", "sun-with-face")):
        assert place[one] == place[other] or split == "subgroup"


def test_thumbnails_are_pictures(emoji) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for modality in PICTURES:
        for item in emoji.ids:
            content = thumbnail(item, modality)
            assert len(content) == int.from_bytes(content[4:8], "little") + 8  # one whole file, and no more
            picture = image.open(io.BytesIO(content))
            assert picture.format == "WEBP"
            assert 8 <= max(picture.size) <= 56
        pixels = np.asarray(picture.convert("RGBA"))
        assert pixels[..., 3].max() > 200
    red, white = (
        np.asarray(image.open(io.BytesIO(thumbnail(f"{colour}-circle"))).convert("RGB"))[28, 28].astype(int)
        for colour in ("red", "white")
    )
    assert red[0] > red[1] + 80
    assert np.ptp(white) < 60
    with pytest.raises(InputError, match="dog-face"):
        thumbnail("dog-fase")
    with pytest.raises(InputError, match="image, drawing"):
        thumbnail("dog-face", "speech")


def test_query_words_are_no_names_and_find_what_they_mean(emoji) -> None:
    queries = query_vectors()
    assert 40 <= len(queries) <= 60
    names = {str(name).lower() for name in [*emoji.text, *emoji.column("name")]}
    assert not names & set(queries)
    raw = load_dataset("emoji", standardize=False)
    rows = np.flatnonzero(raw.present[:, 2])
    for word, subgroup in (("fruit", "food-fruit"), ("birthday", "food-sweet"), ("music", "music")):
        best = rows[np.argsort(-raw.z["text"][rows] @ queries[word])[:5]]
        assert subgroup in set(raw.column("subgroup")[best])


def test_reduction(emoji) -> None:
    values = np.random.default_rng(0).normal(size=(3, 1280)).astype(np.float32)
    reduced = reduce_features("efficientnet_lite0", values)
    assert reduced.shape == (3, 256)
    gaps = np.linalg.norm(reduced[0] - reduced[1]), np.linalg.norm(values[0] - values[1])
    assert 0 < gaps[0] < gaps[1]  # a projection shortens
    saved = np.load(BUNDLE)
    np.testing.assert_array_equal(reduce_features("efficientnet_lite0", saved["efficientnet_lite0_centre"][None]), 0)
    with pytest.raises(InputError, match=r"\(N, 1280\); got \(1280,\)"):
        reduce_features("efficientnet_lite0", values[0])
    with pytest.raises(InputError, match=r"\(N, 1280\)"):
        reduce_features("efficientnet_lite0", values[:, :5])
    with pytest.raises(InputError, match="whisper_base"):
        reduce_features("minilm", values)


def test_licences_are_beside_the_data() -> None:
    text = NOTICE.read_text(encoding="utf-8")
    for licence in ("SIL OPEN FONT LICENSE", "Creative Commons Attribution 4.0", "Unicode, Inc.", "Apache License"):
        assert licence in text


def test_what_an_index_of_the_emoji_needs():
    words = query_vectors()
    word = next(iter(words))
    for modality in ("text", "keywords"):
        np.testing.assert_array_equal(INDEXING.word_vector(modality, word), words[word])
    assert INDEXING.word_vector("text", "no such word") is None
    assert INDEXING.word_vector("speech", word) is None
    features = np.ones((2, 1280), np.float32)
    np.testing.assert_array_equal(
        INDEXING.reduce("efficientnet_lite0", features), reduce_features("efficientnet_lite0", features)
    )
    assert INDEXING.reduce("minilm", features) is features
    assert INDEXING.thumbnail("dog-face", ["text"]) is None
    assert INDEXING.thumbnail("dog-face", ["text", "drawing"]) == thumbnail("dog-face", "drawing")
