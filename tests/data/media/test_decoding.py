"""The media rules of the public code, against numbers made by hand or by slow, obvious code."""

from __future__ import annotations

import math
import wave

import numpy as np
import pytest
import torch

from calmrl.data.media.images import FrameTransform, random_square
from calmrl.data.media.streams import read_audio, resample, segment_frames

PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def test_frames_are_the_middles_of_a_split() -> None:
    assert segment_frames(100, 8, rule="split") == [6, 19, 32, 45, 57, 69, 81, 93]
    assert segment_frames(100, 8) == [5, 18, 30, 43, 55, 68, 80, 93]
    for total in range(1, 60):
        for n in (1, 2, 3, 8):
            padded = [*range(total), *[total - 1] * (n - total)]
            parts = np.array_split(padded, n)
            assert segment_frames(total, n, rule="split") == [part[(len(part) + 1) // 2 - 1] for part in parts]


def test_random_frames_stay_in_their_part_of_the_split() -> None:
    generator = torch.Generator().manual_seed(0)
    seen: list[set[int]] = [set(), set(), set()]
    for _ in range(200):
        for part, frame in zip(seen, segment_frames(11, 3, generator, "split"), strict=True):
            part.add(frame)
    assert seen == [{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10}]


def write_wav(path, channels: np.ndarray, rate: int) -> None:
    """16-bit samples (T, channels) as a file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(channels.astype("<i2").tobytes())


def test_the_left_channel_or_a_mix(tmp_path) -> None:
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    left, right = np.arange(800) * 20, np.full(800, 4000)
    write_wav(tmp_path / "two.wav", np.stack([left, right], axis=1), 16_000)
    np.testing.assert_allclose(read_audio(tmp_path / "two.wav", channel="left"), left / 2**15, atol=1e-7)
    np.testing.assert_allclose(read_audio(tmp_path / "two.wav"), (left + right) / 2**16, atol=1e-7)


def slow_resample(x: np.ndarray, old: int, new: int, n: int) -> float:
    """One sample, straight from the formula."""
    cut, total = 0.99 * min(old, new), 0.0
    for k, value in enumerate(x):
        at = cut * (n / new - k / old)
        if abs(at) < 6:
            wave = 1.0 if at == 0 else math.sin(math.pi * at) / (math.pi * at)
            total += value * cut / old * wave * math.cos(math.pi * at / 12) ** 2
    return total


@pytest.mark.parametrize(("old", "new"), [(44_100, 16_000), (8_000, 16_000), (48_000, 16_000), (22_050, 16_000)])
def test_resampling_is_the_sum_of_the_formula(old: int, new: int) -> None:
    x = np.random.default_rng(0).normal(size=700)
    fast = resample(x, old, new)
    assert len(fast) == math.ceil(700 * new / old)
    for n in (0, 1, 57, len(fast) // 2, len(fast) - 1):
        assert fast[n] == pytest.approx(slow_resample(x, old, new, n), abs=1e-5)


def picture(row: list[int], height: int) -> np.ndarray:
    """Every line alike, grey."""
    return np.repeat(np.array(row, np.uint8)[None, :, None], height, axis=0).repeat(3, axis=2)


def test_bilinear_looks_at_two_pixels_only() -> None:
    """8 to 2: places 1.5 and 5.5, so that a lone bright pixel at 3 is not seen; an antialiased resize sees it."""
    lone = picture([0, 0, 0, 200, 0, 0, 0, 0], 2)
    squash = FrameTransform(2, "squash", **PLAIN)
    np.testing.assert_array_equal(squash.clip([lone]), np.zeros((1, 3, 2, 2)))
    ramp = picture([0, 10, 20, 30, 40, 50, 60, 70], 2)
    np.testing.assert_allclose(squash.clip([ramp])[0, 0], [[15 / 255, 55 / 255]] * 2, atol=1e-6)
    pytest.importorskip("PIL", reason="Pillow (calmrl[media]) is not installed")
    assert FrameTransform(2, "squash", "bicubic", **PLAIN).clip([lone]).max() > 0.1


@pytest.mark.parametrize(("width", "nearest", "down"), [(5, 0, 0), (6, 1, 1), (7, 2, 1), (9, 2, 2), (11, 4, 3)])
def test_the_corner_of_the_crop_is_rounded(width: int, nearest: int, down: int) -> None:
    """Half of 1, 2, 3, 5, 7: to the nearest, halves to the even number, or down."""
    ramp = picture(list(range(width)), 4)
    for rounding, left in (("nearest", nearest), ("down", down)):
        first = FrameTransform(4, "crop", "bilinear", rounding, **PLAIN).clip([ramp])[0, 0, 0]
        np.testing.assert_allclose(first * 255, np.arange(left, left + 4), atol=1e-4)


# ---- crops


def by_hand(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    for _ in range(10):
        side = round(math.sqrt(height * width * rng.uniform(0.8, 1.0)))
        if side <= min(height, width):
            return int(rng.integers(height - side + 1)), int(rng.integers(width - side + 1)), side, side
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


@pytest.mark.parametrize(("height", "width"), [(20, 20), (40, 37), (37, 40), (100, 10), (11, 101), (1, 1)])
def test_random_squares_are_those_of_the_formula(height, width):
    for seed in range(20):
        box = random_square(height, width, np.random.default_rng(seed))
        assert box == by_hand(height, width, np.random.default_rng(seed))
        assert all(isinstance(number, int) for number in box)


def test_the_central_square_where_none_fits():
    assert random_square(100, 11, np.random.default_rng(0)) == (44, 0, 11, 11)
    assert random_square(11, 100, np.random.default_rng(0)) == (0, 44, 11, 11)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_frames_of_the_right_size_are_normalised_only(interpolation):
    if interpolation == "bicubic":
        pytest.importorskip("PIL.Image")
    frame = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    transform = FrameTransform(6, interpolation=interpolation, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    expected = (frame / 255 - np.array([0.1, 0.2, 0.3])) / np.array([0.5, 0.25, 2.0])
    np.testing.assert_allclose(transform(frame), expected.transpose(2, 0, 1), atol=1e-6)
    assert FrameTransform().size == 224


def test_the_middle_of_a_long_frame():
    frame = np.zeros((4, 12, 3), np.uint8)
    frame[:, 4:8] = 255
    plain = FrameTransform(4, mean=(0.0,) * 3, std=(1.0,) * 3)
    np.testing.assert_array_equal(plain(frame), 1.0)
    np.testing.assert_array_equal(plain(frame.transpose(1, 0, 2)), 1.0)
    assert FrameTransform(4, "squash", mean=(0.0,) * 3, std=(1.0,) * 3)(frame)[0, :, 0].max() == 0  # the sides are seen


def test_a_training_crop_is_the_drawn_square_and_half_of_them_are_turned():
    frame = np.random.default_rng(0).integers(0, 256, (10, 10, 3), dtype=np.uint8)
    transform = FrameTransform(10, "crop-flip", mean=(0.0,) * 3, std=(1.0,) * 3)
    turned = 0
    for seed in range(12):
        rng = np.random.default_rng([seed, 1])
        top, left, side, _ = random_square(10, 10, rng)
        expected = transform._resized([frame[top : top + side, left : left + side]], 10, 10)
        flip = rng.random() < 0.5
        turned += flip
        np.testing.assert_array_equal(transform.clip([frame], seed), expected[..., ::-1] if flip else expected)
    assert 0 < turned < 12
    np.testing.assert_array_equal(transform.clip([frame])[0], frame.transpose(2, 0, 1).astype(np.float32) / 255)
