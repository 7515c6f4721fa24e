"""Images through Pillow, or drawn by `documents`; the resize - crop - normalise transform of CLIP, without torchvision."""

import io
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.parsing import reason_of
from calmrl.data.media.decoding import Interpolation, Resize, Rounding
from calmrl.data.media.documents import drawing
from calmrl.data.media.problems import Unreadable, check_file, label_of
from calmrl.errors import InputError, MissingExtraError, need

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
MAX_PIXELS = 89_478_485  # above this an image is refused before it is decoded (Pillow's own limit for a warning)
MANY_PIXELS = 20_000_000  # above this also a file with fewer than one byte for PIXELS_PER_BYTE pixels
PIXELS_PER_BYTE = 200  # photographs have less than 20; a blank page that was made to fill the memory has thousands
FILE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")  # each holds its own content and runs no program
HEAD = 1024  # bytes that tell SVG, HEIC and PDF from the rest
MARGIN = 0.08  # white border of an image that was cut out along its alpha channel, as a share of its longer side
CANVAS = 512
FAINT = 8  # alpha (of 255) up to which a pixel counts as not there when cutting


def open_image(source: Any, *, crop_alpha: bool = True) -> Any:
    """A picture as an RGB image of Pillow, upright, with transparency on white.

    `source` is a path, the bytes of a file, or an image of Pillow. With `crop_alpha`, an image with transparent parts
    is cut to what can be seen and put in the middle of a white square with a margin; otherwise, and without
    transparency, the image keeps its size.
    """
    image_module = need("PIL.Image", "media", "reading images")
    label = label_of(source)
    if isinstance(source, (str, Path)):
        check_file(str(source))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            image = _upright(source, label)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise Unreadable("huge image", f"{label} has more than {image_module.MAX_IMAGE_PIXELS:,} pixels") from error
    except image_module.UnidentifiedImageError as error:
        raise Unreadable("not decodable as image", label) from error
    except (InputError, MissingExtraError):
        raise
    except Exception as error:  # decoders of Pillow raise anything on damaged files
        raise Unreadable("damaged image", f"{label}: {reason_of(error)}") from error
    if not image.has_transparency_data:
        return _to_rgb(image)
    return on_white(image.convert("RGBA"), crop=crop_alpha)


def _upright(source: Any, label: str) -> Any:
    """The image, decoded and turned as its EXIF data say."""
    image_module = need("PIL.Image", "media", "reading images")
    ops = need("PIL.ImageOps", "media", "reading images")
    if isinstance(source, image_module.Image):
        _check_size(source.size, label)
        return ops.exif_transpose(source)
    in_memory = isinstance(source, (bytes, bytearray))
    draw = drawing(bytes(source[:HEAD]) if in_memory else _head(source))
    if draw is not None:
        file = draw(bytes(source) if in_memory else source)
    else:
        file = image_module.open(io.BytesIO(source) if in_memory else source, formats=FILE_FORMATS)
    with file:
        _check_size(file.size, label, len(source) if in_memory else os.path.getsize(source))
        image = ops.exif_transpose(file)
        image.load()
    return image


def _head(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(HEAD)


def on_white(image: Any, *, crop: bool) -> Any:
    """An RGBA image on white; with `crop`, only what can be seen, in the middle of a square of at most 512 pixels."""
    image_module = need("PIL.Image", "media", "reading images")
    if image.getchannel("A").getextrema()[0] == 255:  # an alpha channel, but nothing is transparent
        return image.convert("RGB")
    box = image.getchannel("A").point([0] * (FAINT + 1) + [255] * (255 - FAINT)).getbbox() if crop else None
    if box is not None:
        image = image.crop(box)
    flat = image_module.new("RGBA", image.size, "white")
    flat.alpha_composite(image)
    flat = flat.convert("RGB")
    if not crop:
        return flat
    longer = max(flat.size)
    side = longer + 2 * int(MARGIN * longer)
    square = image_module.new("RGB", (side, side), "white")
    square.paste(flat, ((side - flat.width) // 2, (side - flat.height) // 2))
    return square.resize((CANVAS, CANVAS), image_module.Resampling.LANCZOS)


@dataclass(frozen=True)
class ImageTransform:
    """Resize the shorter side to `resize`, cut out the middle `size` x `size`, x -> (x / 255 - mean) / std."""

    size: int = 224
    resize: int | tuple[int, int] | None = None  # None: `size`; (height, width): exactly that, whatever the shape
    resample: int = 3  # of Pillow: 2 bilinear, 3 bicubic
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD

    def __call__(self, image: Any) -> np.ndarray:
        """An RGB image of Pillow as float32 (3, size, size)."""
        if isinstance(self.resize, tuple):
            image = image.resize(self.resize[::-1], self.resample)
        else:
            short, shorter = self.resize or self.size, min(image.size)
            image = image.resize((short * image.width // shorter, short * image.height // shorter), self.resample)
        left, top = (image.width - self.size) // 2, (image.height - self.size) // 2
        image = image.crop((left, top, left + self.size, top + self.size))
        return normalised(np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255, self.mean, self.std)


def normalised(pixels: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Pixels (..., 3, height, width) from 0 to 1 -> (pixels - mean) / std, channel by channel."""
    centre, scale = (np.asarray(values, np.float32)[:, None, None] for values in (mean, std))
    return (pixels - centre) / scale


def _to_rgb(image: Any) -> Any:
    if image.mode.startswith("I") or image.mode == "F":  # more than 8 bits: Pillow would clip instead of scaling
        values = np.asarray(image, dtype=np.float64)
        low, high = (0.0, 65535.0) if image.mode != "F" and values.max(initial=0) > 255 else (0.0, 255.0)
        image_module = need("PIL.Image", "media", "reading images")
        image = image_module.fromarray(np.clip((values - low) / (high - low) * 255, 0, 255).astype(np.uint8))
    return image.convert("RGB")


def _check_size(size: tuple[int, int], path: str, file_bytes: int | None = None) -> None:
    pixels = size[0] * size[1]
    shape = f"{path} has {size[0]} x {size[1]} pixels"
    if pixels > MAX_PIXELS:
        raise Unreadable("huge image", f"{shape}; at most {MAX_PIXELS} are decoded")
    if file_bytes is not None and pixels > max(MANY_PIXELS, file_bytes * PIXELS_PER_BYTE):
        raise Unreadable(
            "huge image", f"{shape} in {file_bytes:,} bytes; so empty a picture is decoded up to {MANY_PIXELS}"
        )


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
        return normalised(values, self.mean, self.std)

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
