"""The keys of `model: {kind: vast}`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from calmrl._support.arguments import Count
from calmrl._support.registry import Registry, signature_of
from calmrl._support.section import Section
from calmrl._support.text import closest
from calmrl.data.media.decoding import Decoding
from calmrl.encoders.registry import EncoderSpec


class WeightsSection(Section):
    """Files that the encoders start from: one checkpoint of VAST, GRAM or PMRL, or one file per encoder.

    `tolerant`, as in the public code: what a file lacks stays random and unknown keys are left out, both are reported.
    `interpolation` of positions at another resolution; by default bilinear for a checkpoint, bicubic for a vision file.
    """

    checkpoint: str | None = None
    vision: str | None = None
    audio: str | None = None
    text: str | None = None
    tolerant: bool = True
    interpolation: Literal["bilinear", "bicubic"] | None = None

    def files(self) -> dict[str, str]:
        """What is named -> its path."""
        paths = {"checkpoint": self.checkpoint, "vision": self.vision, "audio": self.audio, "text": self.text}
        return {name: path for name, path in paths.items() if path}

    @model_validator(mode="after")
    def _one_kind(self) -> WeightsSection:
        if self.checkpoint is not None and (self.vision or self.audio or self.text):
            raise ValueError("a checkpoint holds all encoders; leave out vision, audio and text")
        return self


class VastSection(Section):
    """The model of the paper, from raw media. `sizes` are arguments of `VastModel.from_sizes`; its own are the paper's.

    `first_stage`, `negatives` and `decoding` default to the rules of the public code; `docs/reference/recipe.md` lists them.
    """

    kind: Literal["vast"]
    width: Count = 512
    frames: Count = 8
    slices: Count = 1
    image_size: Count = 224
    matching: bool = True
    first_stage: Literal["fused", "sum"] = "fused"
    negatives: Literal["floored", "softmax"] = "floored"
    decoding: Decoding = Decoding()  # a source may have a `resize` of its own
    tokenizer: str
    tokens: dict[str, int] = Field(default_factory=dict)
    sizes: dict[str, int | float] = Field(default_factory=dict)
    weights: WeightsSection = WeightsSection()
    gradient_checkpointing: bool = False
    workers: Count = 2

    @field_validator("sizes")
    @classmethod
    def _registered(cls, sizes: dict[str, int | float]) -> dict[str, int | float]:
        allowed = [*signature_of("calmrl.paper.vast.model:VastModel.from_sizes").parameters]
        for key in sizes:
            if key not in allowed or key in cls.model_fields:
                near = closest(key, allowed)
                raise ValueError(f"no size is called {key}" + (f"; did you mean {near}?" if near else ""))
        return sizes


MEDIA, ENCODERS = 'pip install "calmrl[media]"', 'pip install "calmrl[encoders]"'
MIT, APACHE = "MIT, to be downloaded", "Apache-2.0, to be downloaded"
FRAMES = "image or video frames"
_ENTRIES = {  # what goes in and comes out, and where the weights come from; `make` is empty: the model is built whole
    "eva01-g14": EncoderSpec(
        FRAMES, 1408, "vision tower of EVA01-CLIP ViT-g/14, trainable", "EVA01_CLIP_g_14_psz14_s11B.pt", MIT, MEDIA, ""
    ),
    "beats-iter3plus": EncoderSpec(
        "audio", 768, "BEATs iter3+ trained on AudioSet-2M, trainable", "BEATs_iter3_plus_AS2M.pt", MIT, MEDIA, ""
    ),
    "bert-base-uncased": EncoderSpec(
        "text", 768, "BERT base, also the matching encoder, trainable", "folder bert-base-uncased", APACHE, ENCODERS, ""
    ),
    "vast": EncoderSpec(
        f"{FRAMES}, audio, text, subtitle",
        512,
        "eva01-g14, beats-iter3plus and bert-base-uncased with heads and a matching encoder, trainable",
        "model_step_*.pt of VAST, GRAM or PMRL",
        MIT,
        ENCODERS,
        "",
    ),
}
TOWERS = Registry[EncoderSpec]("tower", _ENTRIES)
