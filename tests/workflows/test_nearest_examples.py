"""What a few queries find, with pictures of the items."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch

from calmrl.data import open_features, write_features
from calmrl.data.features.item_files import file_columns
from calmrl.datasets import load_dataset
from calmrl.workflows.examples import nearest_examples, picture_of

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


def test_a_file_that_is_gone_is_no_picture(features) -> None:
    assert picture_of(features, 1) is None
    assert picture_of(features, 0) is not None
    (features.path.parents[1] / "photos" / "a.png").unlink()
    assert picture_of(features, 0) is None


def test_emoji_have_pictures() -> None:
    emoji = load_dataset("emoji")
    row = emoji.ids.tolist().index("dog-face")
    assert picture_of(emoji, row).startswith("data:image/webp;base64,")
