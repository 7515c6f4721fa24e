"""What a few queries find, with pictures of the items."""

from __future__ import annotations

import base64
import io
import wave

import numpy as np
import pytest
import torch

from calmrl.data import open_features, write_features
from calmrl.data.features.feature_set import file_columns
from calmrl.workflows.evaluate import caption_of, nearest_examples, picture_of

Image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")


@pytest.fixture
def features(tmp_path):
    """Four items; "b" has no picture, and no item has everything."""
    (tmp_path / "photos").mkdir()
    cells = [{"image": str(tmp_path / "photos" / f"{name}.png")} if name != "b" else {} for name in "abcd"]
    for cell, colour in zip(cells, ("red", "", "lime", "blue"), strict=True):
        if cell:
            Image.new("RGB", (300, 200), colour).save(cell["image"])
    z = {name: np.random.default_rng(0).normal(size=(4, 3)) for name in ("text", "image", "sound")}
    present = np.array([[1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 1, 0]], dtype=bool)
    out = tmp_path / "work" / "features"
    columns = file_columns(cells, out)
    write_features(out, z, present, ids=list("abcd"), text=["red", "x", "green", "blue"], columns=columns)
    return open_features(out)


def colour(uri: str) -> tuple[int, ...]:
    image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert max(image.size) <= 192
    return image.convert("RGB").getpixel((5, 5))


def test_what_is_found_is_shown_with_its_picture_although_no_row_is_complete(features) -> None:
    z = {name: torch.eye(4) for name in features.names}
    queries = nearest_examples(features, np.arange(4), z, torch.from_numpy(np.array(features.present)))
    assert [query["query"] for query in queries] == ["red", "green", "blue"]
    assert {query["task"] for query in queries} == {"text->image"}
    assert [query["rank"] for query in queries] == [1, 1, 1]
    red, green, _ = colour(queries[1]["found"][0]["picture"])
    assert green > 240
    assert red < 15


def test_all_items_with_the_value_of_the_query_count(tmp_path) -> None:
    z = {name: np.eye(4) for name in ("text", "image")}
    columns = {"thing": ["dog", "cat", "dog", None]}
    write_features(tmp_path / "features", z, ids=list("abcd"), text=["red", "x", "green", "blue"], columns=columns)
    features = open_features(tmp_path / "features")
    places = {"text": torch.eye(4), "image": torch.eye(4)[[1, 0, 2, 3]] + 0.1 * torch.eye(4)}
    everything = torch.ones(4, 2, dtype=torch.bool)
    first, second, _, last = nearest_examples(features, np.arange(4), places, everything, "thing")
    assert {item["id"]: item["relevant"] for item in first["found"]} == {"b": False, "a": True, "c": True}
    assert first["rank"] == 2
    assert [item["id"] for item in second["found"] if item["relevant"]] == ["b"]
    assert [item["id"] for item in last["found"] if item["relevant"]] == ["d"]  # without a value: its own row alone
    assert {query["relevant_by"] for query in (first, second, last)} == {"thing"}
    (first, *_) = nearest_examples(features, np.arange(4), places, everything)
    assert [item["id"] for item in first["found"] if item["relevant"]] == ["a"]


def test_items_with_sound_files_can_be_heard(tmp_path) -> None:
    """Of the query, only the file of the modality that asks."""
    (tmp_path / "media").mkdir()
    tone = (np.sin(np.arange(8000)) * 9000).astype("<i2").tobytes()
    for name in "ab":
        with wave.open(str(tmp_path / "media" / f"{name}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(tone)
    (tmp_path / "media" / "c.wav").write_text("no sound")
    cells = [{"sound": str(tmp_path / "media" / f"{name}.wav")} for name in "abc"]
    z = {name: np.eye(3) for name in ("text", "sound")}
    out = tmp_path / "features"
    write_features(out, z, ids=list("abc"), text=["x", "y", "z"], columns=file_columns(cells, out))
    queries = nearest_examples(open_features(out), np.arange(3), {n: torch.eye(3) for n in z}, torch.ones(3, 2) > 0)
    heard = {item["id"]: item["sound"] for item in queries[0]["found"]}
    assert heard["a"].startswith("data:audio/mpeg;base64,")
    assert heard["c"] is None
    assert queries[0]["sound"] is None  # it was asked with a text
    by_sound = {"sound": torch.eye(3), "image": torch.eye(3)}
    asked = nearest_examples(open_features(out), np.arange(3), by_sound, torch.ones(3, 2) > 0)
    assert asked[0]["task"] == "sound->image"
    assert asked[0]["sound"] is not None


def test_a_file_that_is_gone_is_no_picture(features) -> None:
    assert picture_of(features, 1) is None
    assert picture_of(features, 0) is not None
    (features.path.parents[1] / "photos" / "a.png").unlink()
    assert picture_of(features, 0) is None


@pytest.mark.parametrize(
    ("text", "names", "present", "shown"),
    [
        (["a", None], ("text", "image"), [[1, 1], [1, 1]], 2),
        (None, ("text", "image"), [[1, 1], [1, 1]], 0),
        (["a", None], ("text",), [[1, 1], [1, 1]], 0),
        (["a", None], ("text", "image"), [[1, 0], [0, 1]], 0),
    ],
)
def test_examples_need_texts_and_pairs(tmp_path, text, names, present, shown) -> None:
    write_features(tmp_path / "f", {name: np.eye(2) for name in ("text", "image")}, text=text)
    z, there = {name: torch.eye(2) for name in names}, torch.tensor(present, dtype=torch.bool)
    assert len(nearest_examples(open_features(tmp_path / "f"), np.arange(2), z, there)) == shown


@pytest.mark.parametrize(("text", "caption"), [(["x", "y"], "x"), ("x", "x"), ([], "id"), (None, "id"), ("", "id")])
def test_the_caption_of_an_item_is_its_first_text_or_its_id(text, caption) -> None:
    assert caption_of(text, "id") == caption
