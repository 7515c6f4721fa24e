"""Frozen encoders, from media to vectors: `load_encoder(name)` with a name of ENCODERS or "hf:PATH" of transformers."""

from __future__ import annotations

from calmrl._support.registry import lookup
from calmrl.encoders import audio, image, text
from calmrl.encoders.base import Encoder, EncoderSpec

__all__ = ["ENCODERS", "Encoder", "EncoderSpec", "load_encoder"]

ENCODERS: dict[str, EncoderSpec] = {**image.SPECS, **text.SPECS, **audio.SPECS}


def load_encoder(name: str, device: str = "cpu") -> Encoder:
    """The encoder of that name. `device` applies to "hf:" encoders; the packaged ones run on the CPU."""
    if name.startswith("hf:"):
        from calmrl.encoders.hf import load_hf, parse

        path, kind, pooling = parse(name.removeprefix("hf:"))
        return load_hf(path, kind, pooling, device)
    return lookup(ENCODERS, name, "encoder").load()
