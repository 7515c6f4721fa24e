"""Any vision, video, text or audio model of `transformers`, by local path or name: "hf:PATH" or, say, "hf:PATH#text+cls".

The part after # is needed where a model has two sides (CLIP, SigLIP, CLAP, X-CLIP), or to choose the pooling. Without it:
- models with a joint space give their projected features;
- text models the mean over tokens, or what the sentence-transformers files beside the model say;
- vision models their pooled output, or the mean over patches; audio models the mean over time.

A weight that the features need and the checkpoint lacks is an error, and so is one that would be dropped, except for the
heads of tasks. "+allow=PATTERN" allows others by name.
"""

from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from calmrl.encoders.base import MEDIA, Encoder, same
from calmrl.encoders.hf_audio import hear
from calmrl.encoders.hf_files import preprocessor
from calmrl.encoders.hf_image import VIDEO, image_encoder
from calmrl.encoders.hf_text import text_encoder
from calmrl.encoders.hf_weights import load_model, unused_parts
from calmrl.errors import InputError, need

POOLINGS = ("cls", "mean")
ALLOW = "allow="


class Reference(NamedTuple):
    """What stands after "hf:"."""

    name: str
    kind: str | None = None
    pooling: str | None = None
    allow: tuple[str, ...] = ()


def load_hf(
    name: str,
    kind: str | None = None,
    pooling: str | None = None,
    device: str = "cpu",
    *,
    allow: tuple[str, ...] = (),
) -> Encoder:
    """A model of transformers as an encoder.

    Parameters
    ----------
    name : str
        Local path or name.
    kind : {"image", "text", "audio"}, optional
        The side of the model; by default what its config says.
    pooling : {"cls", "mean"}, optional
    device : str
    allow : tuple of str
        Patterns of weights that may be missing or dropped.
    """
    transformers = need("transformers", "encoders", f"the encoder hf:{name}")
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        notes = preprocessor(transformers, name)
        kind = kind or _kind(config, notes, name)
        unused = unused_parts(config, pooler=kind != "text" and pooling is None)
        model = load_model(transformers, name, config, unused=unused, allow=allow).eval().to(device)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f'the model "{name}" cannot be loaded: {str(error).splitlines()[0]}') from error
    if kind == "image":
        return image_encoder(model, notes, pooling, device)
    if kind == "text":
        read = text_encoder(transformers, model, name, pooling, device, device != "cpu")
        return Encoder("text", read(["a"]).shape[1], same, read)
    return _audio_encoder(transformers, model, name, pooling, device)


def _audio_encoder(transformers: ModuleType, model: Any, name: str, pooling: str | None, device: str) -> Encoder:
    extractor = transformers.AutoFeatureExtractor.from_pretrained(name)
    encode = partial(hear, model, extractor, pooling, device)
    rate = int(extractor.sampling_rate)
    return Encoder("audio", encode([np.zeros(rate, np.float32)]).shape[1], same, encode, rate)


def parse(reference: str) -> Reference:
    """ "PATH#kind+pooling+allow=PATTERN" -> its parts; all after # may be left out."""
    name, _, rest = reference.partition("#")
    kind, *more = rest.split("+")
    if kind.startswith(ALLOW) or kind in POOLINGS:
        kind, more = "", [kind, *more]
    allow = tuple(part.removeprefix(ALLOW) for part in more if part.startswith(ALLOW))
    poolings = [part for part in more if not part.startswith(ALLOW)]
    if not name:
        raise InputError('an encoder "hf:" needs a local path or a name after the colon')
    if kind and kind not in MEDIA:
        raise InputError(f'unknown kind "{kind}" in "hf:{reference}"; use #{", #".join(MEDIA)}')
    for pooling in poolings:
        if pooling not in POOLINGS:
            raise InputError(f'unknown pooling "{pooling}" in "hf:{reference}"; use +{" or +".join(POOLINGS)}')
    return Reference(name, kind or None, poolings[0] if poolings else None, allow)


def _kind(config: Any, notes: dict[str, Any], name: str) -> str:
    keys = {"image": "vision_config", "audio": "audio_config", "text": "text_config"}
    sides = [kind for kind, key in keys.items() if hasattr(config, key)]
    if len(sides) > 1:
        raise InputError(f'"{name}" has several sides; say which: {" or ".join(f"hf:{name}#{side}" for side in sides)}')
    if sides:
        return sides[0]
    if config.model_type in VIDEO:
        return "image"
    if "image_mean" in notes or "image_processor_type" in notes or hasattr(config, "image_size"):
        return "image"
    return "audio" if "sampling_rate" in notes else "text"
