"""The media rules of the public code, against numbers made by hand or by slow, obvious code."""

from __future__ import annotations

import math
import wave

import numpy as np
import pytest
import torch

from calmrl.data.media.fbank import whole_slices
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


@pytest.mark.parametrize(
    ("frames", "at_least", "slices", "zeros"),
    [(2048, 1, 3, 1), (2048, 2, 3, 1), (2048, 3, 3, 1), (500, 2, 2, 1), (500, 1, 1, 0), (1025, 1, 2, 0), (0, 2, 2, 2)],
)
def test_missing_slices_are_zeros_and_full_ones_get_one_more(
    frames: int, at_least: int, slices: int, zeros: int
) -> None:
    cut = whole_slices(torch.ones(frames, 64), at_least)
    assert cut.shape == (slices, 1024, 64)
    assert int((cut.abs().sum((1, 2)) == 0).sum()) == zeros
    assert float(cut.sum()) == frames * 64


def test_without_a_number_no_slice_is_added() -> None:
    assert [len(whole_slices(torch.ones(frames, 64))) for frames in (0, 1, 1024, 1025, 2048)] == [1, 1, 1, 2, 2]


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


def test_resampling_keeps_a_tone_and_removes_what_is_too_high(tmp_path) -> None:
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    seconds = np.arange(44_100) / 44_100
    tone, too_high = (10_000 * np.sin(2 * np.pi * hertz * seconds) for hertz in (440, 12_000))
    write_wav(tmp_path / "tone.wav", (tone + too_high)[:, None], 44_100)
    got = read_audio(tmp_path / "tone.wav", resampling="sinc")
    assert len(got) == 16_000
    wanted = 10_000 / 2**15 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(got[100:-100], wanted[100:-100], atol=5e-3)


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


def test_squash_keeps_the_sides_and_crop_does_not() -> None:
    wide = picture([0, 0, 100, 100, 100, 100, 0, 0], 4)
    assert FrameTransform(4, "squash", **PLAIN).clip([wide])[0, 0, 0, 0] == 0
    np.testing.assert_allclose(FrameTransform(4, "crop", **PLAIN).clip([wide]), 100 / 255, atol=1e-6)


@pytest.mark.parametrize(("width", "nearest", "down"), [(5, 0, 0), (6, 1, 1), (7, 2, 1), (9, 2, 2), (11, 4, 3)])
def test_the_corner_of_the_crop_is_rounded(width: int, nearest: int, down: int) -> None:
    """Half of 1, 2, 3, 5, 7: to the nearest, halves to the even number, or down."""
    ramp = picture(list(range(width)), 4)
    for rounding, left in (("nearest", nearest), ("down", down)):
        first = FrameTransform(4, "crop", "bilinear", rounding, **PLAIN).clip([ramp])[0, 0, 0]
        np.testing.assert_allclose(first * 255, np.arange(left, left + 4), atol=1e-4)


def test_crop_and_flip_is_for_training_and_the_same_for_all_frames() -> None:
    ramp = picture(list(range(0, 90, 10)), 4)  # wide: 80 % of the area has no square, so the crop is central
    transform = FrameTransform(4, "crop-flip", **PLAIN)
    plain = FrameTransform(4, "crop", **PLAIN)
    np.testing.assert_array_equal(transform.clip([ramp, ramp]), plain.clip([ramp, ramp]))
    straight = np.arange(20, 60, 10) / 255
    turned = 0
    for seed in range(200):
        clip = transform.clip([ramp, ramp], seed)
        np.testing.assert_array_equal(clip[0], clip[1])
        flipped = clip[0, 0, 0, 0] > clip[0, 0, 0, 3]
        np.testing.assert_allclose(clip[0, 0, 0], straight[::-1] if flipped else straight, atol=1e-6)
        turned += int(flipped)
    assert 70 < turned < 130


def test_a_random_square_takes_80_to_100_percent_of_a_square_frame() -> None:
    generator = np.random.default_rng(0)
    boxes = [random_square(100, 100, generator) for _ in range(300)]
    shares = np.array([high * wide / 10_000 for _, _, high, wide in boxes])
    assert 0.79 < shares.min() < 0.82
    assert 0.98 < shares.max() <= 1.0
    assert all(top + high <= 100 and left + wide <= 100 for top, left, high, wide in boxes)
    assert random_square(90, 160, generator) == (0, 35, 90, 90)
    assert random_square(161, 90, generator) == (35, 0, 90, 90)
