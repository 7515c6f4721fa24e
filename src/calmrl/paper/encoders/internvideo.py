"""InternVideo (MM-L-14, or B-16) through its official code: videos and texts in one space.

The checkpoint must be named after "@": "internvideo_video@InternVideo-MM-L-14.ckpt". It is read as tensors alone, and one
that lacks weights is refused: the official loader would leave them random.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from calmrl._support.tensor_files import read_checkpoint
from calmrl.encoders.base import Encoder
from calmrl.errors import InputError
from calmrl.paper.encoders.official import for_files, for_texts, must_be, official, read_officially

VIDEO_SHAPE = (3, 8, 224, 224)
PREFIX = "clip."  # of the keys of the model in its checkpoint
MASK = "text_mask_embedding"  # of masked training; no feature depends on it


def video_encoder(weights: str | None, device: str) -> Encoder:
    """Videos: eight frames, seen at once."""
    return for_files("image", VIDEO_SHAPE, read_video, partial(run_video, _named(weights, "video"), device), device)


def text_encoder(weights: str | None, device: str) -> Encoder:
    """Texts of up to 77 tokens; longer ones are cut."""
    return for_texts(partial(run_texts, _named(weights, "text"), device))


def read_video(path: str) -> np.ndarray:
    """(3, 8, 224, 224)."""
    must_be("video", path, "internvideo_video", "images and audio need another encoder")
    package = official("InternVideo", "internvideo_video")
    with old_integer_name():
        return read_officially("InternVideo", package.load_video, path)


def run_video(path: str, device: str, frames: torch.Tensor) -> torch.Tensor:
    return load_model(path, device).encode_video(frames)


def run_texts(path: str, device: str, texts: list[str]) -> torch.Tensor:
    tokens = official("InternVideo", "internvideo_text").tokenize(texts, truncate=True)
    return load_model(path, device).encode_text(tokens.to(device))


@lru_cache(maxsize=1)
def load_model(path: str, device: str) -> Any:
    """The model of a checkpoint; both sides share it."""
    models = official("InternVideo.clip_utils.model", "internvideo_video")
    state = read_checkpoint(path).get("state_dict", {})
    weights = {key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)}
    if not weights:
        raise InputError(
            f'{path} has no state_dict with keys that begin with "{PREFIX}"; it is not one of InternVideo-MM'
        )
    model = models.build_model(state_dict=weights)
    absent = sorted(set(model.state_dict()) - set(weights) - {MASK})
    if absent:
        raise InputError(f'{path} has no "{absent[0]}" ({len(absent)} weights are missing), which would be random')
    return model.float().eval().to(device)


def _named(weights: str | None, side: str) -> str:
    if weights is None:
        raise InputError(
            f"InternVideo needs its checkpoint: internvideo_{side}@InternVideo-MM-L-14.ckpt; the model zoo of "
            "https://github.com/OpenGVLab/InternVideo says where to download it"
        )
    return weights


@contextmanager
def old_integer_name() -> Iterator[None]:
    """`numpy.int`, which the official code uses and NumPy 1.24 removed, for the time of a call."""
    if "int" in vars(np):
        yield
        return
    vars(np)["int"] = int
    try:
        yield
    finally:
        del vars(np)["int"]
