"""Frames of one video as one tensor: resize, crop, perhaps turn left to right, normalise; all frames alike."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calmrl.data.media.decoding import Interpolation, Resize, Rounding
from calmrl.data.media.images import CLIP_MEAN, CLIP_STD
from calmrl.errors import need

Box = tuple[int, int, int, int]  # top, left, height, width
AREA = (0.8, 1.0)  # share of the frame that a random crop takes
ATTEMPTS = 10
BICUBIC = 3  # in Pillow


@dataclass(frozen=True)
class FrameTransform:
    """x -> (resized x / 255 - mean) / std for all frames of a video, in the ways that `Decoding` names."""

    size: int = 224
    resize: Resize = "crop"
    interpolation: Interpolation = "bilinear"
    rounding: Rounding = "nearest"
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD

    def __call__(self, image: Any) -> np.ndarray:
        """An RGB image of Pillow as float32 (3, size, size)."""
        return self.clip([np.asarray(image)])[0]

    def clip(self, frames: Sequence[np.ndarray], seed: int | None = None) -> np.ndarray:
        """Frames of one size, uint8 (height, width, 3), as float32 (n, 3, size, size). `seed` is for training only."""
        height, width = frames[0].shape[:2]
        if self.resize == "crop-flip" and seed is not None:
            generator = np.random.default_rng([seed, 1])  # not the numbers that chose the frames
            top, left, high, wide = random_square(height, width, generator)
            cut = [frame[top : top + high, left : left + wide] for frame in frames]
            values = self._resized(cut, self.size, self.size)
            values = values[..., ::-1] if generator.random() < 0.5 else values
        elif self.resize == "squash":
            values = self._resized(frames, self.size, self.size)
        else:
            shorter = min(height, width)
            values = self._resized(frames, self.size * height // shorter, self.size * width // shorter)
            top, left = (self._half(side - self.size) for side in values.shape[2:])
            values = values[:, :, top : top + self.size, left : left + self.size]
        mean, std = (np.asarray(numbers, np.float32)[:, None, None] for numbers in (self.mean, self.std))
        return (values - mean) / std

    def _half(self, rest: int) -> int:
        return round(rest / 2) if self.rounding == "nearest" else rest // 2

    def _resized(self, frames: Sequence[np.ndarray], height: int, width: int) -> np.ndarray:
        """float32 (n, 3, height, width) from 0 to 1."""
        if self.interpolation == "bicubic":
            image = need("PIL.Image", "media", "resizing frames")
            pictures = [image.fromarray(np.ascontiguousarray(frame)) for frame in frames]
            stacked = np.stack([np.asarray(picture.resize((width, height), BICUBIC)) for picture in pictures])
            return stacked.transpose(0, 3, 1, 2).astype(np.float32) / 255
        import torch  # here, because processes that decode for frozen encoders start faster without it

        parts = []
        for frame in frames:
            pixels = torch.from_numpy(frame.astype(np.float32) / 255).permute(2, 0, 1)[None]
            if pixels.shape[2:] != (height, width):
                pixels = torch.nn.functional.interpolate(pixels, (height, width), mode="bilinear", align_corners=False)
            parts.append(pixels[0])
        return torch.stack(parts).numpy()


def random_square(height: int, width: int, generator: np.random.Generator) -> Box:
    """A random square of 80 to 100 % of the area; the central one if ten draws do not fit the frame."""
    for _ in range(ATTEMPTS):
        side = round(math.sqrt(height * width * generator.uniform(*AREA)))
        if 0 < side <= min(height, width):
            top, left = generator.integers(height - side + 1), generator.integers(width - side + 1)
            return int(top), int(left), side, side
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side
