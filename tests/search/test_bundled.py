"""Bundled data sets as collections."""

from __future__ import annotations

import numpy as np

from calmrl.datasets import emoji
from calmrl.search.collection import Collection, ItemRecord, OpenSource, known_vector, reduced, with_thumbnails


def test_words_that_need_no_encoder(monkeypatch):
    monkeypatch.setattr(emoji, "query_vectors", lambda: {"dog": np.ones(2)})
    for modality in ("text", "keywords"):
        assert known_vector("emoji", modality, "dog").tolist() == [1, 1]
        assert known_vector("emoji", modality, "cat") is None
        assert known_vector("emoji", modality, 3) is None
    assert known_vector("stamps", "text", "dog") is None
    assert known_vector("emoji", "speech", "dog") is None


def test_vectors_in_the_form_that_is_stored(monkeypatch):
    monkeypatch.setattr(emoji, "REDUCED", {"minilm": 1})
    monkeypatch.setattr(emoji, "reduce_features", lambda encoder, vectors: vectors[:, :1])
    vectors = np.ones((2, 3))
    assert reduced("emoji", "minilm", vectors).shape == (2, 1)
    assert reduced("emoji", "other", vectors) is vectors
    assert reduced("stamps", "minilm", vectors) is vectors


def test_pictures_of_the_emoji(monkeypatch):
    monkeypatch.setattr(emoji, "PICTURES", ("image", "drawing"))
    monkeypatch.setattr(emoji, "thumbnail", lambda id, name: f"{id} {name}".encode())
    present = np.array([[True, True, True], [False, True, True], [False, False, True]])
    z = {name: np.ones((3, 1)) for name in ("image", "drawing", "text")}

    def shown(kind, root):
        items = Collection([ItemRecord(name) for name in "abc"], z, present, {}, root)
        made = with_thumbnails(OpenSource(kind, root), items)
        assert made is items
        return [made.thumbnail(row) for row in range(3)]

    assert shown("dataset", "emoji") == [b"a image", b"b drawing", None]
    assert shown("dataset", "stamps") == shown("folder", "emoji") == [None, None, None]
