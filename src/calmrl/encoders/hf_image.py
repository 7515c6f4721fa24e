"""Pictures and videos for models of `transformers`.

Image models see frames one by one, and the vectors of a video's frames are averaged. Video models (VideoMAE, ViViT,
TimeSformer, X-CLIP, V-JEPA2) see as many frames as they were built for, at once; a picture is repeated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from calmrl.data.media.images import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from calmrl.encoders.base import Encoder, each
from calmrl.encoders.hf_pooling import pooled
from calmrl.errors import InputError

VIDEO = ("videomae", "vivit", "timesformer", "xclip", "vjepa2")  # values of model_type
NAFLEX = "siglip2"  # takes pictures of any shape, cut into at most so many patches


def image_encoder(model: Any, notes: dict[str, Any], pooling: str | None, device: str) -> Encoder:
    """The vision side of a model as an encoder."""
    batched = device != "cpu"
    if model.config.model_type in VIDEO:
        return _video_encoder(model, notes, pooling, device)
    if model.config.model_type == NAFLEX:
        transform: Any = naflex_transform(notes, model.config.vision_config)
        forward: Callable[[torch.Tensor], torch.Tensor] = partial(_flexible, model, transform.patch, device)
        side = transform.patch
    else:
        transform = image_transform(notes, model.config)
        forward, side = partial(_picture, model, pooling, device), transform.size
    encode = partial(each, forward, batched=batched)
    return Encoder("image", encode([np.zeros((1, 3, side, side), np.float32)]).shape[1], transform, encode)


def image_transform(notes: dict[str, Any], config: Any) -> ImageTransform:
    """The transform that preprocessor_config.json describes."""
    size = notes.get("size") or getattr(config, "image_size", None) or 224
    if isinstance(size, dict):
        size = size.get("shortest_edge") or (size["height"], size["width"])
    crop = notes.get("crop_size") if notes.get("do_center_crop", notes.get("crop_size") is not None) else None
    if isinstance(crop, dict):
        if crop["height"] != crop["width"]:
            raise InputError(f"this model crops images to {crop}; only squares are supported")
        crop = crop["height"]
    if isinstance(size, (tuple, list)) and size[0] != size[1] and crop is None:
        raise InputError(f"this model takes images of {size[0]} x {size[1]}; only squares are supported")
    final = crop or (size if isinstance(size, int) else size[0])
    if notes.get("crop_pct") and isinstance(size, int) and size < 384:
        size = int(size / notes["crop_pct"])
    mean, std = _mean_and_std(notes, IMAGENET_MEAN, IMAGENET_STD)
    return ImageTransform(
        int(final),
        resize=tuple(size) if isinstance(size, (tuple, list)) else int(size),
        resample=int(notes.get("resample", 3)),
        mean=mean,
        std=std,
    )


def _mean_and_std(notes: dict[str, Any], mean: Sequence[float], std: Sequence[float]) -> Any:
    if not notes.get("do_normalize", True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    else:
        mean, std = tuple(notes.get("image_mean") or mean), tuple(notes.get("image_std") or std)
    if notes.get("offset"):  # ViViT: from -1 to 1 first, 2 x - 1
        mean, std = tuple((1 + value) / 2 for value in mean), tuple(value / 2 for value in std)
    return tuple(mean), tuple(std)


def _picture(model: Any, pooling: str | None, device: str, pixels: torch.Tensor) -> torch.Tensor:
    pixels = pixels.to(device)
    if hasattr(model, "get_image_features"):
        return pooled(model.get_image_features(pixel_values=pixels), None, None, True)
    return pooled(model(pixel_values=pixels), None, pooling, True)


def _video_encoder(model: Any, notes: dict[str, Any], pooling: str | None, device: str) -> Encoder:
    config = getattr(model.config, "vision_config", model.config)
    frames: int = config.num_frames if hasattr(config, "num_frames") else config.frames_per_clip
    transform = image_transform(notes, config)

    @torch.inference_mode()
    def encode(items: list[np.ndarray]) -> np.ndarray:
        rows = [_clip(model, pooling, device, _whole_clip(item, frames)) for item in items]
        return torch.cat(rows).float().cpu().numpy()

    probe = np.zeros((1, 3, transform.size, transform.size), np.float32)
    return Encoder("image", encode([probe]).shape[1], transform, encode, frames=frames)


def _whole_clip(item: np.ndarray, frames: int) -> torch.Tensor:
    """(1, frames, 3, H, W) from the frames of a video, or from a picture."""
    if len(item) not in (1, frames):
        raise InputError(f"this encoder sees {frames} frames at once; got {len(item)}: prepare that many, or a picture")
    return torch.from_numpy(np.broadcast_to(item, (frames, *item.shape[1:])).copy())[None]


def _clip(model: Any, pooling: str | None, device: str, pixels: torch.Tensor) -> torch.Tensor:
    pixels = pixels.to(device)
    if hasattr(model, "get_video_features"):
        return pooled(model.get_video_features(pixel_values=pixels), None, None, True)
    if model.config.model_type == "vjepa2":
        return pooled(model(pixel_values_videos=pixels, skip_predictor=True), None, pooling, True)
    return pooled(model(pixel_values=pixels), None, pooling, True)


@dataclass(frozen=True)
class NaflexTransform:
    """Resize, keeping the shape, to as many whole patches as allowed; then x -> (x / 255 - mean) / std."""

    patch: int = 16
    patches: int = 256
    resample: int = 2
    mean: tuple[float, ...] = (0.5,) * 3
    std: tuple[float, ...] = (0.5,) * 3

    def __call__(self, image: Any) -> np.ndarray:
        """An RGB image of Pillow as float32 (3, H, W), both multiples of the patch."""
        height, width = naflex_size(image.height, image.width, self.patch, self.patches)
        pixels = np.asarray(image.resize((width, height), self.resample), dtype=np.float32).transpose(2, 0, 1) / 255
        mean, std = (np.asarray(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        return (pixels - mean) / std


def naflex_transform(notes: dict[str, Any], config: Any) -> NaflexTransform:
    """The transform of a SigLIP2 NaFlex checkpoint."""
    mean, std = _mean_and_std(notes, (0.5,) * 3, (0.5,) * 3)
    patch = int(notes.get("patch_size") or config.patch_size)
    return NaflexTransform(patch, int(notes.get("max_num_patches", 256)), int(notes.get("resample", 2)), mean, std)


def naflex_size(height: int, width: int, patch: int, patches: int) -> tuple[int, int]:
    """The largest size in the shape of the picture, each side rounded up to whole patches, with at most `patches`."""

    def sides(scale: float) -> tuple[int, int]:
        return tuple(max(1, -int(-side * scale // patch)) * patch for side in (height, width))  # type: ignore[return-value]

    small, large = 1e-6, 100.0
    while large - small >= 1e-5:
        scale = (small + large) / 2
        tall, wide = sides(scale)
        small, large = (scale, large) if tall * wide <= patches * patch**2 else (small, scale)
    return sides(small)


def _flexible(model: Any, patch: int, device: str, pixels: torch.Tensor) -> torch.Tensor:
    """Pictures of one shape (N, 3, H, W), patch by patch, each with all its channels last."""
    n, _, height, width = pixels.shape
    cut = pixels.unflatten(3, (-1, patch)).unflatten(2, (-1, patch)).permute(0, 2, 4, 3, 5, 1)  # (N, h, w, p, p, 3)
    shape = (height // patch, width // patch)
    inputs = {
        "pixel_values": cut.flatten(3).flatten(1, 2),
        "pixel_attention_mask": torch.ones(n, shape[0] * shape[1], dtype=torch.int32),
        "spatial_shapes": torch.tensor([shape] * n),
    }
    inputs = {key: value.to(device) for key, value in inputs.items()}
    return pooled(model.get_image_features(**inputs), None, None, True)
