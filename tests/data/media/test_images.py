"""Images: transparency, orientation, guards, and the transform against Pillow's own operations."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from calmrl.data.media.images import CLIP_MEAN, CLIP_STD, ImageTransform, open_image
from calmrl.data.media.unreadable import Unreadable

Image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")


def save(path, array: np.ndarray, **options):
    Image.fromarray(array).save(path, **options)
    return path


def test_transparency_is_on_white_and_can_be_cut_out(tmp_path) -> None:
    pixels = np.zeros((40, 60, 4), np.uint8)
    pixels[10:30, 20:30] = (255, 0, 0, 255)
    pixels[0, 0] = (0, 0, 0, 8)  # so faint that it does not count
    path = save(tmp_path / "a.png", pixels)
    whole = np.asarray(open_image(path, crop_alpha=False))
    assert whole.shape == (40, 60, 3)
    assert (whole[35, 5] == 255).all()
    assert tuple(whole[20, 25]) == (255, 0, 0)
    cut = np.asarray(open_image(path)).astype(int)  # 10 x 20 pixels, in a square of 20 + 2 * 1
    assert cut.shape == (512, 512, 3)
    red = (cut[..., 0] > 200) & (cut[..., 1] < 60)
    rows, columns = np.flatnonzero(red.any(axis=1)), np.flatnonzero(red.any(axis=0))
    assert rows[0] / 512 == pytest.approx(1 / 22, abs=0.02)
    assert rows[-1] / 512 == pytest.approx(21 / 22, abs=0.02)
    assert columns[0] / 512 == pytest.approx(6 / 22, abs=0.02)
    assert columns[-1] / 512 == pytest.approx(16 / 22, abs=0.02)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "CMYK", "1", "I;16"])
def test_all_modes_become_rgb(tmp_path, mode: str) -> None:
    grey = np.tile(np.linspace(0, 255, 32).astype(np.uint8), (32, 1))
    deep = mode == "I;16"
    image = Image.fromarray(grey.astype(np.uint16) * 257) if deep else Image.fromarray(grey).convert(mode)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    image.save(path)
    got = open_image(path)
    assert got.mode == "RGB"
    if mode in ("L", "I;16", "LA"):
        np.testing.assert_allclose(np.asarray(got)[..., 0], grey, atol=1)


def test_orientation_is_applied(tmp_path) -> None:
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right by 90 degrees
    path = save(tmp_path / "a.jpg", pixels, exif=exif)
    turned = np.asarray(open_image(path))
    assert turned.shape == (40, 20, 3)
    assert turned[:15].mean() > 200 > turned[25:].mean()


def test_transform_is_resize_crop_normalise(tmp_path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (90, 130, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    got = ImageTransform(64)(image)
    resized = image.resize((64 * 130 // 90, 64), Image.Resampling.BICUBIC)
    left = (resized.width - 64) // 2
    expected = np.asarray(resized.crop((left, 0, left + 64, 64))) / 255.0
    np.testing.assert_allclose(got, ((expected - CLIP_MEAN) / CLIP_STD).transpose(2, 0, 1), atol=1e-5)
    assert got.dtype == np.float32
    assert ImageTransform(32, resize=48)(image).shape == (3, 32, 32)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ImageTransform(64)))(image), got)


def test_damage_is_named(tmp_path, monkeypatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    good = save(tmp_path / "good.png", noise)
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:4000])
    (tmp_path / "text.png").write_text("hello")
    for name, kind in {
        "cut.png": "damaged image",
        "text.png": "not decodable as image",
        "no.png": "file not found",
    }.items():
        with pytest.raises(Unreadable) as caught:
            open_image(tmp_path / name)
        assert caught.value.kind == kind
        again = pickle.loads(pickle.dumps(caught.value))
        assert (again.kind, str(again)) == (kind, str(caught.value))
    huge = tmp_path / "huge.png"
    Image.new("1", (30_000, 4_000)).save(huge)
    with pytest.raises(Unreadable) as caught:
        open_image(huge)
    assert caught.value.kind == "huge image"
