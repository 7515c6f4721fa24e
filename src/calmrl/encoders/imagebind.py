"""ImageBind through its official package: pictures, films, sounds and texts in one space of width 1024.

Weights: imagebind_huge.pth, in `.checkpoints` of the working directory, where the package itself puts it, or at the path
after "@": "imagebind_image@weights/imagebind_huge.pth". They are read as tensors alone.
"""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calmrl._support.tensor_files import read_checkpoint
from calmrl.encoders.base import Encoder
from calmrl.encoders.official import fill, for_files, for_texts, is_video, official, read_officially
from calmrl.errors import InputError

PLACE = ".checkpoints/imagebind_huge.pth"
ADDRESS = "https://dl.fbaipublicfiles.com/imagebind/imagebind_huge.pth"
PICTURE, SOUND = (3, 224, 224), (3, 1, 128, 204)  # a sound: clips, channel, filter banks, steps


def image_encoder(weights: str | None, device: str) -> Encoder:
    """Pictures, and films: the mean over the clips and crops that the package takes from a film."""
    return for_files("image", PICTURE, read_vision, partial(run_model, weights, device, "vision"), device)


def audio_encoder(weights: str | None, device: str) -> Encoder:
    """Sounds: the mean over three clips of two seconds."""
    return for_files("audio", SOUND, read_sound, partial(run_model, weights, device, "audio"), device)


def text_encoder(weights: str | None, device: str) -> Encoder:
    """Texts of up to 77 tokens; longer ones are cut."""
    return for_texts(partial(read_texts, weights, device))


def read_texts(weights: str | None, device: str, texts: list[str]) -> torch.Tensor:
    data = official("imagebind.data", "imagebind_text")
    return run_model(weights, device, "text", data.load_and_transform_text(texts, device))


def read_vision(path: str) -> np.ndarray:
    """A picture (3, 224, 224), or a film (clips x crops, 3, 2, 224, 224)."""
    data = official("imagebind.data", "imagebind_image")
    read = data.load_and_transform_video_data if is_video(path) else data.load_and_transform_vision_data
    return read_officially("imagebind", lambda file: read([file], "cpu")[0], path)


def read_sound(path: str) -> np.ndarray:
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
