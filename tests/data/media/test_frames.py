"""Frames and squares at their limits: every number of a crop, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calmrl.data.media.images import FrameTransform, random_square


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
    np.testing.assert_array_equal(FrameTransform(4, "squash", mean=(0.0,) * 3, std=(1.0,) * 3)(frame).shape, (3, 4, 4))


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
