"""Another encoder for a modality of an index, bit by bit: what is encoded, what is found meanwhile, what is left at the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("lancedb", reason="the extra search is not installed")
pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from calmrl import Aligner, Index
from calmrl.cli import main
from calmrl.encoders import ENCODERS
from calmrl.encoders.base import Encoder
from calmrl.encoders.registry import EncoderSpec
from calmrl.errors import InputError, MissingExtraError
from tests.support.colour_world import ENCODED, FIXED, NAMES, colour, write_item, write_picture

pytestmark = pytest.mark.usefixtures("colour_encoders", "looks")
ITEMS = 60
OLD = "image by see"


def _pixels(picture) -> np.ndarray:
    return np.asarray(picture.convert("RGB").resize((2, 2)), np.float32).mean(axis=(0, 1))


def _look(items: list[np.ndarray]) -> np.ndarray:
    """The colours through a map of their own, of another width."""
    ENCODED.extend(["look"] * len(items))
    mixing = np.random.default_rng(5).normal(size=(3, 9))
    return ((np.stack([np.ravel(item)[:3] for item in items]) / 127.5 - 1) @ mixing).astype(np.float32)


def _gone():
    raise MissingExtraError("the package of this encoder was removed")


@pytest.fixture
def looks(monkeypatch):
    encoder = Encoder("image", 9, _pixels, _look)
    monkeypatch.setitem(ENCODERS, "look", EncoderSpec("image", 9, "for tests", "look 1", "none", "", lambda: encoder))


@pytest.fixture
def made(tmp_path):
    """(index, folder): pictures, two thirds of them with a text."""
    folder = tmp_path / "colours"
    for number in range(ITEMS):
        write_item(folder, number, {"image", "text"} if number % 3 else {"image"})
    return Index.build(
        folder, tmp_path / "ix", {n: NAMES[n] for n in ("image", "text")}, model=Aligner(**FIXED)
    ), folder


def firsts(index: Index, tmp_path) -> float:
    """How often a picture of an item's colour, by the encoder of the index, finds it first."""
    found = 0
    for number in range(ITEMS):
        query = np.full((9, 9, 3), colour(number), np.uint8)
        found += index.search(image=query, k=1, words=False)[0].id.endswith(f"c{number}")
    return found / ITEMS


def test_the_new_encoder_finds_items_that_only_have_the_old(made, tmp_path, monkeypatch) -> None:
    index, folder = made
    before = firsts(index, tmp_path)
    ENCODED.clear()
    done = index.upgrade(folder, {"image": "look"}, limit=25)
    assert (done.encoded, done.left) == ({"image": 25}, {"image": ITEMS - 25})
    assert ENCODED.count("look") == 25 + 1  # and the fixed item of its description
    assert "see" not in ENCODED
    assert index.modalities()["image"]["encoder"] == "look"
    assert index.modalities()["image"]["n"] == ITEMS  # still observed of all
    assert OLD not in index.modalities()
    assert len(index.search(text="the colour 1 2 3", k=ITEMS, having="image")) == ITEMS
    assert all(OLD not in hit.modalities for hit in index.search(text="the colour 1 2 3"))
    assert firsts(index, tmp_path) > before - 0.1  # by both encoders
    monkeypatch.setitem(ENCODERS, "see", replace(ENCODERS["see"], make=_gone))
    assert firsts(index, tmp_path) > before - 0.1  # by the new one alone
    assert any("25 items by look, 35 still by see" in line for line in index.summary())


def test_it_goes_on_until_the_old_vectors_go(made) -> None:
    index, folder = made
    ENCODED.clear()
    left = [index.upgrade(folder, {"image": "look"}, limit=25).left["image"] for _ in range(3)]
    assert left == [35, 10, 0]
    assert ENCODED.count("look") - 3 == ITEMS  # a description each run; no item twice
    again = Index.open(index.path)
    assert list(again.modalities()) == list(again.layout["modalities"])
    assert all(name != OLD for name in again.layout["modalities"])
    fresh = Index.build(
        folder, index.path.with_name("fresh"), {"image": "look", "text": "read"}, model=Aligner(**FIXED)
    )
    query = np.full((9, 9, 3), colour(8), np.uint8)
    assert [hit.id for hit in again.search(image=query)] == [hit.id for hit in fresh.search(image=query)]
    with pytest.raises(InputError, match="image has the encoder look already"):
        again.upgrade(folder, {"image": "look"})


def test_items_that_are_added_meanwhile_have_the_new_encoder_only(made) -> None:
    index, folder = made
    index.upgrade(folder, {"image": "look"}, limit=30)
    write_item(folder, 99, {"image"})
    ENCODED.clear()
    assert len(index.add(folder).added) == 1
    assert "see" not in ENCODED
    query = write_picture(folder.parent / "q.png", colour(99))
    assert index.search(image=str(query), k=1, words=False)[0].id.endswith("c99")
    assert index.upgrade(folder, {"image": "look"}).left == {"image": 0}


def test_a_run_that_is_stopped_keeps_what_it_encoded(made, monkeypatch) -> None:
    index, folder = made

    def stop(done, total, what):
        if what == "encode image" and done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        index.upgrade(folder, {"image": "look"}, progress=stop)
    assert index.modalities()["image"]["encoder"] == "see"
    ENCODED.clear()
    assert index.upgrade(folder, {"image": "look"}).encoded == {"image": ITEMS}
    assert ENCODED.count("look") <= ITEMS - 32 + 1


def test_files_that_changed_wait_for_add(made) -> None:
    index, folder = made
    picture = next(folder.rglob("*c4.png"))
    write_picture(picture, colour(4, seed=9))
    done = index.upgrade(folder, {"image": "look"})
    assert (done.encoded, done.left) == ({"image": ITEMS - 1}, {"image": 1})
    index.add(folder)
    assert index.upgrade(folder, {"image": "look"}).left == {"image": 0}


@pytest.mark.parametrize(
    ("encoders", "limit", "says"),
    [
        ({"image": "read"}, None, "read reads text, but image is image"),
        ({"sound": "hear"}, None, "the index has no modality 'sound' to encode again; it has text, image"),
        ({"image": "see"}, None, "image has the encoder see already"),
        ({}, None, "name the new encoder"),
        ({"image": "look"}, 0, "limit is how many items to encode at most, a whole number from 1 on; got 0"),
        ({"image": "look"}, 5, "only 5 items have image by both encoders, and 20 are needed"),
    ],
)
def test_what_is_refused_leaves_the_index_as_it_was(made, encoders, limit, says) -> None:
    index, folder = made
    version = index.about()["version"]
    with pytest.raises(InputError, match=says):
        index.upgrade(folder, encoders, limit=limit)
    assert Index.open(index.path).about()["version"] == version


def test_another_encoder_must_wait(made) -> None:
    index, folder = made
    index.upgrade(folder, {"image": "look"}, limit=30)
    with pytest.raises(InputError, match="image is on its way to look; finish that first, with --encoder image=look"):
        index.upgrade(folder, {"image": "see"})


def test_the_command(made, capsys) -> None:
    index, folder = made
    line = ["index", str(folder), "--out", str(index.path), "--upgrade", "--encoder", "image=look"]
    with pytest.raises(SystemExit, match="0"):
        main([*line, "--limit", "30"])
    assert "image: 30 items encoded, 30 to go; run the same line again" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(line)
    assert "image: 30 items encoded, all have the new encoder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*line[:4], "--limit", "30"])
    assert "--limit says how much --upgrade encodes at once" in capsys.readouterr().err
