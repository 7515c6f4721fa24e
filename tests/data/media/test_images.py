"""Images: transparency, orientation, guards, and the transform against Pillow's own operations."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from calmrl.data.media import images
from calmrl.data.media.images import CLIP_MEAN, CLIP_STD, ImageTransform, open_image
from calmrl.data.media.problems import Unreadable

Image = pytest.importorskip("PIL.Image", reason="Pillow (calmrl[media]) is not installed")


def save(path, array: np.ndarray, **options):
    Image.fromarray(array).save(path, **options)
    return path


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
    monkeypatch.setattr(images, "MAX_PIXELS", 11)
    for source, kind in ((huge, "huge image"), (Image.new("RGB", (4, 3)), "huge image")):
        with pytest.raises(Unreadable) as caught:
            open_image(source)
        assert caught.value.kind == kind
        assert re.search(r"has more than [\d,]+ pixels|; at most 11 are decoded", str(caught.value))
    assert open_image(Image.new("RGB", (11, 1))).size == (11, 1)


def test_the_numbers_of_clip_and_imagenet() -> None:
    """As the public code of CLIP and torchvision print them."""
    assert CLIP_MEAN == (0.48145466, 0.4578275, 0.40821073)
    assert CLIP_STD == (0.26862954, 0.26130258, 0.27577711)
    assert images.IMAGENET_MEAN == (0.485, 0.456, 0.406)
    assert images.IMAGENET_STD == (0.229, 0.224, 0.225)
    assert (ImageTransform().size, ImageTransform().resize, ImageTransform().resample) == (224, None, 3)


@pytest.mark.parametrize(
    ("size", "file_bytes", "said"),
    [
        ((89_478_485, 1), None, None),
        ((89_478_486, 1), None, "p has 89478486 x 1 pixels; at most 89478485 are decoded"),
        ((44_739_243, 2), None, "at most 89478485 are decoded"),
        ((20_000_000, 1), 1, None),
        ((20_000_001, 1), 1, "pixels in 1 bytes; so empty a picture is decoded up to 20000000"),
        ((20_000_200, 1), 100_001, None),
        ((20_000_201, 1), 100_001, "pixels in 100,001 bytes"),
        ((80_000_000, 1), None, None),
    ],
)
def test_how_many_pixels_are_decoded(size, file_bytes, said) -> None:
    if said is None:
        images._check_size(size, "p", file_bytes)
    else:
        with pytest.raises(Unreadable, match=said) as caught:
            images._check_size(size, "p", file_bytes)
        assert caught.value.kind == "huge image"


def test_what_is_cut_out_is_in_the_middle_of_its_margin(monkeypatch) -> None:
    """50 x 20 pixels in a square of 50 + 2 * 4, not resized."""
    monkeypatch.setattr(images, "CANVAS", 58)
    pixels = np.zeros((80, 90, 4), np.uint8)
    pixels[10:30, 20:70] = (255, 0, 0, 255)
    pixels[10, 20] = (255, 0, 0, 9)  # faint, but there
    pixels[5, 5] = (255, 0, 0, 8)
    square = np.asarray(open_image(Image.fromarray(pixels)))
    expected = np.full((58, 58, 3), 255, np.uint8)
    expected[19:39, 4:54] = (255, 0, 0)
    expected[19, 4] = square[19, 4]
    np.testing.assert_array_equal(square, expected)
    assert 240 < square[19, 4, 1] < 255
    whole = np.asarray(open_image(Image.fromarray(pixels), crop_alpha=False))
    assert whole.shape == (80, 90, 3)


def test_an_alpha_channel_without_transparency_is_left_out() -> None:
    pixels = np.full((4, 6, 4), 255, np.uint8)
    assert open_image(Image.fromarray(pixels)).size == (6, 4)
    pixels[0, 0, 3] = 254
    assert open_image(Image.fromarray(pixels)).size == (512, 512)


def test_nothing_can_be_seen() -> None:
    seen = np.asarray(open_image(Image.fromarray(np.zeros((4, 6, 4), np.uint8))))
    assert seen.shape == (512, 512, 3)
    assert (seen == 255).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 255]], np.int32), [0, 255]),
        (np.array([[0, 256, 65535]], np.int32), [0, 0, 255]),
        (np.array([[0, 32896, 65535]], np.int32), [0, 128, 255]),
        (np.array([[-5, 70000]], np.int32), [0, 255]),
        (np.array([[0.0, 100.0, 255.0, 300.0]], np.float32), [0, 100, 255, 255]),
    ],
)
def test_deep_images_are_scaled_not_clipped(values, expected) -> None:
    assert np.asarray(open_image(Image.fromarray(values)))[0, :, 1].tolist() == expected


def test_exact_shapes_and_tall_images() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (130, 90, 3), dtype=np.uint8))
    plain = {"mean": (0.0,) * 3, "std": (1.0,) * 3}
    tall = image.resize((8, 8 * 130 // 90), Image.Resampling.BICUBIC).crop((0, 1, 8, 9))
    np.testing.assert_allclose(ImageTransform(8, **plain)(image).transpose(1, 2, 0) * 255, np.asarray(tall), atol=1e-4)
    exact = image.resize((12, 10), Image.Resampling.BILINEAR).crop((2, 1, 10, 9))
    got = ImageTransform(8, resize=(10, 12), resample=2, **plain)(image)
    np.testing.assert_allclose(got.transpose(1, 2, 0) * 255, np.asarray(exact), atol=1e-4)
