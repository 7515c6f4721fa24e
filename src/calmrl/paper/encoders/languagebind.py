"""LanguageBind through its official package: images, videos, audio and texts in one space of width 768.

Weights come from LanguageBind's account on Hugging Face as its package fetches them, once, into the usual cache. What
stands after "@" chooses others of that account: "languagebind_video@LanguageBind_Video". The text side is that of
LanguageBind_Image: all checkpoints share it.
"""

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from calmrl.encoders.base import Encoder
from calmrl.errors import InputError
from calmrl.paper.encoders.official import for_files, for_texts, must_be, official, read_officially

CHECKPOINTS = {
    "image": "LanguageBind_Image",
    "video": "LanguageBind_Video_FT",
    "audio": "LanguageBind_Audio_FT",
    "text": "LanguageBind_Image",
}
INSTEAD = {
    "image": "take languagebind_video for videos",
    "video": "take languagebind_image for images",
    "audio": "take languagebind_image or languagebind_video",
}
TOKENS = 77


def image_encoder(weights: str | None, device: str) -> Encoder:
    return _encoder("image", weights, device)


def video_encoder(weights: str | None, device: str) -> Encoder:
    """Videos: as many frames as the checkpoint was trained on, seen at once."""
    return _encoder("video", weights, device)


def audio_encoder(weights: str | None, device: str) -> Encoder:
    return _encoder("audio", weights, device)


def text_encoder(weights: str | None, device: str) -> Encoder:
    """Texts of up to 77 tokens; longer ones are cut."""
    return for_texts(partial(read_texts, weights or CHECKPOINTS["text"], device))


def _encoder(side: str, weights: str | None, device: str) -> Encoder:
    checkpoint = weights or CHECKPOINTS[side]
    config = load_model(side, checkpoint, device).modality_config[side]
    forward = partial(run_model, side, checkpoint, device)
    kind = "image" if side == "video" else side
    return for_files(kind, _shape(side, config.vision_config), Reader(side, config), forward, device)


def _shape(side: str, vision: Any) -> tuple[int, ...]:
    """Of what its processor makes of a file; audio is three images of filter banks."""
    if side == "audio":
        return 3, vision.num_mel_bins, vision.target_length
    pixels = (vision.image_size, vision.image_size)
    return (3, vision.num_frames, *pixels) if side == "video" else (3, *pixels)


@dataclass
class Reader:
    """Reads a file as the processor of its side does. The processor itself does not pickle, so each process makes one."""

    side: str
    config: Any = field(repr=False)
    _processor: Any = field(default=None, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_processor": None}

    def __call__(self, path: str) -> np.ndarray:
        must_be(self.side, path, f"languagebind_{self.side}", INSTEAD[self.side])
        if self._processor is None:
            package = official("languagebind", f"languagebind_{self.side}")
            self._processor = package.transform_dict[self.side](self.config)
        return read_officially("languagebind", lambda file: self._processor([file])["pixel_values"][0], path)


def run_model(side: str, checkpoint: str, device: str, pixels: torch.Tensor) -> torch.Tensor:
    return load_model(side, checkpoint, device)({side: {"pixel_values": pixels}})[side]


def read_texts(checkpoint: str, device: str, texts: list[str]) -> torch.Tensor:
    package = official("languagebind", "languagebind_text")
    tokens = load_tokenizer(checkpoint)(
        texts, max_length=TOKENS, padding="max_length", truncation=True, return_tensors="pt"
    )
    model = load_model("image", checkpoint, device)
    return model({"language": package.to_device(tokens, device)})["language"]


@lru_cache(maxsize=3)
def load_model(side: str, checkpoint: str, device: str) -> Any:
    """One side and the text side; `use_temp=False` leaves out the temperature."""
    package = official("languagebind", f"languagebind_{side}")
    try:
        model = package.LanguageBind(clip_type={side: checkpoint}, use_temp=False, cache_dir=None)
    except OSError as error:
        raise InputError(f"the weights {checkpoint} of LanguageBind cannot be loaded: {_line(error)}") from error
    return model.eval().to(device)


@lru_cache(maxsize=1)
def load_tokenizer(checkpoint: str) -> Any:
    package = official("languagebind", "languagebind_text")
    return package.LanguageBindImageTokenizer.from_pretrained(f"LanguageBind/{checkpoint}", cache_dir=None)


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0]
