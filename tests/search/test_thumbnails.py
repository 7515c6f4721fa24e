"""Small pictures."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")

from PIL import Image

from calmrl.data.media.problems import Unreadable
from calmrl.search import collection as thumbnails
from calmrl.search.collection import small, thumbnail


@pytest.mark.parametrize(("size", "shown"), [((384, 96), (192, 48)), ((192, 10), (192, 10)), ((20, 30), (20, 30))])
def test_the_longer_side_has_so_many_pixels(size, shown):
    picture = Image.open(io.BytesIO(small(Image.new("RGBA", size, "red"))))
    assert (picture.format, picture.size) == ("WEBP", shown)


def test_how_it_is_saved():
    saved = []
    copy = SimpleNamespace(
        thumbnail=lambda box: saved.append(box), save=lambda out, kind, quality: saved.append((kind, quality))
    )
    small(SimpleNamespace(convert=lambda mode: saved.append(mode) or copy))
    assert saved == ["RGB", (192, 192), ("WEBP", 80)]


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
