"""ImageBind through its official package: images, videos, audio and texts in one space of width 1024.

Weights: imagebind_huge.pth, in `.checkpoints` of the working directory, where the package itself puts it, or at the path
after "@": "imagebind_image@weights/imagebind_huge.pth". They are read as tensors alone.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from calmrl._support.tensor_files import read_checkpoint
from calmrl.arrays import Array, check, like_input, to_tensor
from calmrl.encoders.base import Encoder
from calmrl.errors import InputError
from calmrl.paper.encoders.official import fill, for_files, for_texts, is_video, official, read_officially

PLACE = ".checkpoints/imagebind_huge.pth"
ADDRESS = "https://dl.fbaipublicfiles.com/imagebind/imagebind_huge.pth"
IMAGE_SHAPE, AUDIO_SHAPE = (3, 224, 224), (3, 1, 128, 204)  # audio: clips, channel, filter banks, steps


def image_encoder(weights: str | None, device: str) -> Encoder:
    """Images, and videos: the mean over the clips and crops that the package takes from a video."""
    return for_files("image", IMAGE_SHAPE, read_vision, partial(run_model, weights, device, "vision"), device)


def audio_encoder(weights: str | None, device: str) -> Encoder:
    """Audio: the mean over three clips of two seconds."""
    return for_files("audio", AUDIO_SHAPE, read_audio, partial(run_model, weights, device, "audio"), device)


def text_encoder(weights: str | None, device: str) -> Encoder:
    """Texts of up to 77 tokens; longer ones are cut."""
    return for_texts(partial(read_texts, weights, device))


def read_texts(weights: str | None, device: str, texts: list[str]) -> torch.Tensor:
    data = official("imagebind.data", "imagebind_text")
    return run_model(weights, device, "text", data.load_and_transform_text(texts, device))


def read_vision(path: str) -> np.ndarray:
    """An image (3, 224, 224), or a video (clips x crops, 3, 2, 224, 224)."""
    data = official("imagebind.data", "imagebind_image")
    read = data.load_and_transform_video_data if is_video(path) else data.load_and_transform_vision_data
    return read_officially("imagebind", lambda file: read([file], "cpu")[0], path)


def read_audio(path: str) -> np.ndarray:
    data = official("imagebind.data", "imagebind_audio")
    return read_officially("imagebind", lambda file: data.load_and_transform_audio_data([file], "cpu")[0], path)


def run_model(weights: str | None, device: str, modality: str, inputs: torch.Tensor) -> torch.Tensor:
    model: Any = load_model(weights or PLACE, device)
    return model({modality: inputs})[modality]


@lru_cache(maxsize=1)
def load_model(path: str, device: str) -> Any:
    """The model with the weights of a file; all sides share it."""
    models = official("imagebind.models.imagebind_model", "imagebind_image")
    if not Path(path).is_file():
        raise InputError(
            f"there are no weights of ImageBind at {path}; download {ADDRESS} and name the file, for instance "
            "image=imagebind@imagebind_huge.pth"
        )
    model = models.imagebind_huge(pretrained=False)
    fill(model, read_checkpoint(path), path)
    return model.eval().to(device)


def imagebind_features(z: Mapping[str, Array], present: Array | None = None) -> dict[str, Array]:
    """What ImageBind gives, each row scaled to length 1; NaN where a modality is missing.

    ImageBind multiplies its unit vectors by a temperature of each modality (none for vision, 20 for audio, a learned one
    up to 100 for text). Scores between two modalities are meant to include it, but a Gram matrix of such vectors is
    dominated by the longest one: singular values, volumes and the latent model's noise would measure the temperature
    instead of agreement. Use this on all features that come from ImageBind, then train `Heads` on them.
    """
    views = check(z, present)
    unit_rows = {}
    for j, (name, array) in enumerate(views.arrays.items()):
        rows = to_tensor(array).float()
        there = views.present[:, j].to(rows.device)
        flat = there & (torch.where(there[:, None], rows, 1.0).norm(dim=1) == 0)
        if flat.any():
            row = int(flat.nonzero()[0, 0])
            raise InputError(f"{name} of row {row} is all 0, which has no direction; mark it missing")
        unit_rows[name] = like_input(torch.where(there[:, None], normalize(rows, dim=1), torch.nan), array)
    return unit_rows
