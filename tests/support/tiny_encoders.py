"""Encoders without weights that exercise the same code as real ones, and tiny random checkpoints of transformers."""

from __future__ import annotations

import hashlib
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from calmrl.data.media.images import ImageTransform
from calmrl.encoders import ENCODERS, Encoder, EncoderSpec
from calmrl.encoders.base import each, same


def _project(width: int, inputs: int) -> torch.Tensor:
    return torch.randn(inputs, width, generator=torch.Generator().manual_seed(0)) / inputs**0.5


def _pixels(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x.flatten(1) @ _project(24, 3 * 16 * 16))


def _texts(texts: list[str]) -> np.ndarray:
    return np.stack([np.frombuffer(hashlib.sha256(t.encode()).digest(), np.uint8) / 255 for t in texts]).astype("f4")


def _sounds(items: list[np.ndarray]) -> np.ndarray:
    return np.stack([np.abs(np.fft.rfft(samples, 4096))[:20] / 100 for samples in items]).astype("f4")


def _slow(items: list[np.ndarray]) -> np.ndarray:
    time.sleep(0.02 * len(items))
    return each(_pixels, items, False)


def _spec(kind: str, width: int, prepare, encode) -> EncoderSpec:
    return EncoderSpec(kind, width, "for tests", "none", "none", "", lambda: Encoder(kind, width, prepare, encode))


TINY = {
    "tiny_image": _spec("image", 24, ImageTransform(16), partial(each, _pixels, batched=False)),
    "tiny_text": _spec("text", 32, same, _texts),
    "tiny_audio": _spec("audio", 20, same, _sounds),
    "slow_image": _spec("image", 24, ImageTransform(16), _slow),
}
CHARACTERS = "abcdefghijklmnopqrstuvwxyz .,0123456789"


@pytest.fixture
def tiny(monkeypatch):
    for name, spec in TINY.items():
        monkeypatch.setitem(ENCODERS, name, spec)


def save_tokenizer(folder: Path, **special: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *CHARACTERS]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
        model_max_length=48,
    ).save_pretrained(folder)


if __name__ == "__main__":  # the command line with these encoders, for tests that kill it
    ENCODERS.update(TINY)
    from calmrl.cli import main

    main(sys.argv[1:])
