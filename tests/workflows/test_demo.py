"""What the demo searches, on the bundled data."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")

from calmrl.errors import MissingExtraError
from calmrl.workflows import demo


def test_sounds_find_pictures_of_other_stamps(tmp_path) -> None:
    index = demo.stamps_index(tmp_path / "stamps.index")
    assert len(index) == 963
    searches = demo.sound_searches(index)
    assert [search.query for search in searches] == ["the sound of a cuckoo", "the sound of a violin"]
    for id, search in zip(demo.SOUNDS, searches, strict=True):
        assert len(search.hits) == 5
        assert all("image" in hit.modalities and hit.id != id for hit in search.hits)
    assert any(hit.id.startswith("hobbies/music/string/") for hit in searches[1].hits)


def test_words_find_pictures_whose_words_were_hidden(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(demo, "EMOJI", {**demo.EMOJI, "latent_dim": 64, "prior": 300.0})  # nothing to choose
    index = demo.emoji_index(tmp_path / "emoji.index")
    searches = demo.word_searches(index, k=5)
    assert len(searches) + len(demo.SOUNDS) == 5
    for search in searches:
        assert len(search.hits) == 5
        assert all(set(hit.modalities) == {"image", "drawing"} for hit in search.hits)
    assert any("heart" in (hit.text or "") for hit in searches[0].hits)


def test_both_are_indexed_and_searched_by_one_worker(tmp_path, monkeypatch) -> None:
    few = {**demo.STAMPS, "features": "linear", "latent_dim": 8}
    monkeypatch.setattr(demo, "EMOJI", few)
    monkeypatch.setattr(demo, "STAMPS", few)
    found = demo.search_both(tmp_path / "emoji.index", tmp_path / "stamps.index")
    assert pickle.loads(pickle.dumps(found)) == found  # a worker sends it back
    assert [one.items for one in found] == [1601, 963]
    assert [len(one.searches) for one in found] == [len(demo.WORDS), len(demo.SOUNDS)]


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch) -> None:
    def absent(path):
        raise MissingExtraError('an index needs the package "lancedb"')

    monkeypatch.setattr(demo, "emoji_index", absent)
    found = demo.search_both(tmp_path / "emoji.index", tmp_path / "stamps.index")
    assert found == 'an index needs the package "lancedb"'
