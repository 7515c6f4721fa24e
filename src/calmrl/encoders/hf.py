"""Any vision, text or audio model of `transformers`, by local path or name: "hf:PATH" or, say, "hf:PATH#text+cls".

The part after # is needed where a model has two sides (CLIP, SigLIP, CLAP), or to choose the pooling. Without it:
- models with a joint space give their projected features;
- text models the mean over tokens, or what the sentence-transformers files beside the model say;
- vision models their pooled output, or the mean over patches; audio models the mean over time.
"""

import json
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch

from calmrl.data.media.images import IMAGENET_MEAN, IMAGENET_STD, ImageTransform
from calmrl.encoders.base import MEDIA, Encoder, each, same
from calmrl.errors import InputError, need

POOLINGS = ("cls", "mean")
FILLED = ("siglip", "siglip2")  # trained on texts that are padded to the full length, without a mask
Forward = Callable[..., torch.Tensor]


def load_hf(name: str, kind: str | None = None, pooling: str | None = None, device: str = "cpu") -> Encoder:
    """A model of transformers as an encoder; `kind` is the side of the model, by default what its config says."""
    transformers = need("transformers", "encoders", f"the encoder hf:{name}")
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        notes = _preprocessor(transformers, name)
        kind = kind or _kind(config, notes, name)
        model = _quietly(transformers, name).eval().to(device)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f'the model "{name}" cannot be loaded: {str(error).splitlines()[0]}') from error
    batched = device != "cpu"
    if kind == "image":
        forward: Forward = partial(_image, model, pooling, device)
        transform = image_transform(notes, config)
        probe = np.zeros((1, 3, transform.size, transform.size), np.float32)
        encode = partial(each, forward, batched=batched)
        return Encoder("image", encode([probe]).shape[1], transform, encode)
    if kind == "text":
        read = _text_encoder(transformers, model, name, pooling, device, batched)
        return Encoder("text", read(["a"]).shape[1], same, read)
    extractor = transformers.AutoFeatureExtractor.from_pretrained(name)
    hear = partial(_audio, model, extractor, pooling, device)
    rate = int(extractor.sampling_rate)
    return Encoder("audio", hear([np.zeros(rate, np.float32)]).shape[1], same, hear, rate)


def parse(reference: str) -> tuple[str, str | None, str | None]:
    """ "PATH#kind+pooling" -> (path, kind, pooling)."""
    name, _, rest = reference.partition("#")
    kind, _, pooling = rest.partition("+")
    if not name:
        raise InputError('an encoder "hf:" needs a local path or a name after the colon')
    if kind and kind not in MEDIA:
        raise InputError(f'unknown kind "{kind}" in "hf:{reference}"; use #{", #".join(MEDIA)}')
    if pooling and pooling not in POOLINGS:
        raise InputError(f'unknown pooling "{pooling}" in "hf:{reference}"; use +{" or +".join(POOLINGS)}')
    return name, kind or None, pooling or None


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
    return ImageTransform(
        int(final),
        resize=tuple(size) if isinstance(size, (tuple, list)) else int(size),
        resample=int(notes.get("resample", 3)),
        mean=tuple(notes.get("image_mean") or IMAGENET_MEAN) if notes.get("do_normalize", True) else (0.0,) * 3,
        std=tuple(notes.get("image_std") or IMAGENET_STD) if notes.get("do_normalize", True) else (1.0,) * 3,
    )


def _quietly(transformers: ModuleType, name: str) -> Any:
    """The model, loaded without a progress bar."""
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        return transformers.AutoModel.from_pretrained(name, dtype=torch.float32)
    finally:
        if shown:
            bars.enable_progress_bar()


def _preprocessor(transformers: ModuleType, name: str) -> dict[str, Any]:
    """What preprocessor_config.json says; nothing if there is none."""
    file = _file(transformers, name, "preprocessor_config.json")
    if file is not None:
        return json.loads(file)
    merged = json.loads(_file(transformers, name, "processor_config.json") or "{}")
    return merged.get("image_processor") or merged.get("feature_extractor") or {}


def _file(transformers: ModuleType, name: str, file: str) -> str | None:
    path = transformers.utils.cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return None
    with open(path, encoding="utf-8") as stream:
        return stream.read()


def _kind(config: Any, notes: dict[str, Any], name: str) -> str:
    keys = {"image": "vision_config", "audio": "audio_config", "text": "text_config"}
    sides = [kind for kind, key in keys.items() if hasattr(config, key)]
    if len(sides) > 1:
        raise InputError(f'"{name}" has several sides; say which: {" or ".join(f"hf:{name}#{side}" for side in sides)}')
    if sides:
        return sides[0]
    if "image_mean" in notes or "image_processor_type" in notes or hasattr(config, "image_size"):
        return "image"
    return "audio" if "sampling_rate" in notes else "text"


def _pooled(output: Any, mask: torch.Tensor | None, pooling: str | None, use_pooler: bool) -> torch.Tensor:
    """(N, tokens, d) -> (N, d)."""
    if isinstance(output, torch.Tensor):
        return output
    if pooling is None and use_pooler and getattr(output, "pooler_output", None) is not None:
        return output.pooler_output.flatten(1)
    states = output.last_hidden_state
    if states.ndim == 4:  # convolutional: (N, d, H, W)
        return states.mean(dim=(2, 3))
    if pooling == "cls":
        return states[:, 0]
    if mask is None:
        return states.mean(dim=1)
    weight = mask[..., None].to(states.dtype)
    return torch.where(weight > 0, states, 0.0).sum(dim=1) / weight.sum(dim=1)


def _image(model: Any, pooling: str | None, device: str, pixels: torch.Tensor) -> torch.Tensor:
    pixels = pixels.to(device)
    if hasattr(model, "get_image_features"):
        return _pooled(model.get_image_features(pixel_values=pixels), None, None, True)
    return _pooled(model(pixel_values=pixels), None, pooling, True)


def _text_encoder(
    transformers: ModuleType, model: Any, name: str, pooling: str | None, device: str, batched: bool
) -> Callable[[list[str]], np.ndarray]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    settings = json.loads(_file(transformers, name, "sentence_bert_config.json") or "{}")
    modules = json.loads(_file(transformers, name, "modules.json") or "[]")
    pool = json.loads(_file(transformers, name, "1_Pooling/config.json") or "{}")
    text_config = getattr(model.config, "text_config", model.config)
    longest = min(
        settings.get("max_seq_length") or 10**9,
        tokenizer.model_max_length,
        getattr(text_config, "max_position_embeddings", 10**9),
        512 if hasattr(text_config, "max_position_embeddings") else 10**9,
    )
    pooling = pooling or ("cls" if pool.get("pooling_mode_cls_token") else None)
    normalise = any("Normalize" in module.get("type", "") for module in modules)
    limits = {"truncation": longest < 10**9, "max_length": longest if longest < 10**9 else None}

    @torch.inference_mode()
    def encode(texts: list[str], batched: bool = batched) -> np.ndarray:
        rows = []
        for group in [texts] if batched else [[text] for text in texts]:
            fill = "max_length" if model.config.model_type in FILLED else len(group) > 1
            tokens = tokenizer(group, padding=fill, return_tensors="pt", **limits).to(device)
            if fill == "max_length":
                tokens = {"input_ids": tokens["input_ids"]}
            if hasattr(model, "get_text_features"):
                vectors = _pooled(model.get_text_features(**tokens), None, None, True)
            else:
                run = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
                vectors = _pooled(run(**tokens), tokens.get("attention_mask"), pooling, False)
            rows.append(torch.nn.functional.normalize(vectors, dim=1) if normalise else vectors)
        return torch.cat(rows).float().cpu().numpy()

    return encode


def _audio(model: Any, extractor: Any, pooling: str | None, device: str, items: list[np.ndarray]) -> np.ndarray:
    """One sound at a time: sounds differ in length, and padding would change the features.

    Sounds that are longer than the model can hear are cut into windows, and the windows' vectors averaged.
    """
    longest = _longest_sound(extractor)
    rows = []
    for samples in items:
        windows = [samples[start : start + longest] for start in range(0, len(samples), longest)]
        vectors = torch.cat([_window(model, extractor, pooling, device, window) for window in windows])
        weight = torch.tensor([len(window) / len(samples) for window in windows], device=vectors.device)
        rows.append(weight[None] @ vectors)
    return torch.cat(rows).cpu().numpy()


def _longest_sound(extractor: Any) -> int:
    """Samples after which the feature extractor would cut: of CLAP (at random), Whisper, and AST."""
    for name in ("nb_max_samples", "n_samples"):
        if getattr(extractor, name, None):
            return int(getattr(extractor, name))
    if getattr(extractor, "max_length", None) and getattr(extractor, "num_mel_bins", None):
        return int(extractor.max_length) * extractor.sampling_rate // 100  # frames of 10 ms
    return 1 << 62


@torch.inference_mode()
def _window(model: Any, extractor: Any, pooling: str | None, device: str, samples: np.ndarray) -> torch.Tensor:
    inputs = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="pt").to(device)
    if hasattr(model, "get_audio_features"):
        return _pooled(model.get_audio_features(**inputs), None, None, True).float()
    run = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    values = {key: value for key, value in inputs.items() if "mask" not in key}
    return _pooled(run(**values), None, pooling, True).float()
