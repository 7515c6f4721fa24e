"""Rows as items, conditions as SQL, and files that stay inside of the collection."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.errors import InputError
from calmrl.search.hits import StoredItems

pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from PIL import Image

from calmrl.data.media.problems import Unreadable
from calmrl.search import collection as thumbnails
from calmrl.search.collection import small, thumbnail

LAYOUT = {
    "modalities": {"image": {}, "te xt": {}},
    "columns": {"size": {"column": "x_0", "holds": "number"}, "label": {"column": "x_1", "holds": "text"}},
}
ROWS = StoredItems("ix", SimpleNamespace(schema=SimpleNamespace(names=["id"])), LAYOUT)


def test_conditions():
    assert ROWS.conditions("te xt", ["image"], "size = 1") == ["has_1", "NOT has_0", "coalesce(x_0 = 1.0, false)"]
    assert ROWS.conditions(["image", "te xt"], [], "") == ["has_0", "has_1"]
    assert ROWS.conditions(None, None, "label = 'a'") == ["coalesce(array_has(labels, 'a'), false)"]  # the labels' own
    with pytest.raises(InputError, match="unknown modality"):
        ROWS.conditions("smell", None, None)


def test_files_stay_inside(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("in/a.png", "out.png"):
        (tmp_path / name).touch()
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "out.png")

    def file(path, modality="image"):
        return ROWS.file({"root": str(tmp_path / "in"), "paths": json.dumps({"image": str(path)})}, "a", modality)

    assert file("a.png") == tmp_path / "in" / "a.png"
    assert file(tmp_path / "out.png") == tmp_path / "out.png"  # an absolute path was given by the source itself
    for path in ("../out.png", "link.png", "gone.png", tmp_path / "gone.png"):
        with pytest.raises(InputError, match="of item 'a' is no longer in"):
            file(path)
    with pytest.raises(InputError, match="item 'a' has no file of te xt; it has image"):
        file("a.png", "te xt")
    with pytest.raises(InputError, match="has no file of image; it has none"):
        ROWS.file({"root": "x", "paths": "{}"}, "a", "image")


def test_a_film_gives_one_frame_and_what_is_damaged_none(tmp_path, monkeypatch):
    asked = []
    frames = np.stack([np.full((4, 6, 3), value, np.uint8) for value in (10, 200)])
    monkeypatch.setattr(thumbnails, "read_frames", lambda path, count: asked.append((path, count)) or (frames, None))
    picture = Image.open(io.BytesIO(thumbnail("a.MP4")))
    assert asked == [("a.MP4", 1)]
    assert abs(int(np.asarray(picture)[0, 0, 0]) - 10) < 8

    def damaged(*given):
        raise Unreadable("image", "damaged")

    monkeypatch.setattr(thumbnails, "read_frames", damaged)
    assert thumbnail("a.mp4") is None
    (tmp_path / "a.png").write_bytes(b"x")
    assert thumbnail(tmp_path / "a.png") is None


@pytest.mark.parametrize(("size", "shown"), [((384, 96), (192, 48)), ((192, 10), (192, 10)), ((20, 30), (20, 30))])
def test_the_longer_side_has_so_many_pixels(size, shown):
    content, plain = small(Image.new("RGBA", size, "red")), io.BytesIO()
    assert Image.open(io.BytesIO(content)).size == shown
    Image.new("RGB", shown, "red").save(plain, "WEBP", quality=80)
    assert content == plain.getvalue()
