"""Any vision, video, text or audio model of `transformers`, by local path or name: "hf:PATH" or, say, "hf:PATH#text+cls".

The part after # is needed where a model has two sides (CLIP, SigLIP, CLAP, X-CLIP), or to choose the pooling. Without it:
- models with a joint space give their projected features;
- text models the mean over tokens, or what the sentence-transformers files beside the model say;
- vision models their pooled output, or the mean over patches; audio models the mean over time.

A weight that the features need and the checkpoint lacks is an error, and so is one that would be dropped, except for the
heads of tasks. "+allow=PATTERN" allows others by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from calmrl._support.text import beginning
from calmrl.data.media.images import IMAGENET_MEAN, IMAGENET_STD, ImageTransform, normalised
from calmrl.encoders.base import MEDIA, Encoder, each, same
from calmrl.errors import InputError, need

EMBEDDINGS = ("image_embeds", "text_embeds", "audio_embeds", "video_embeds")  # of models with a projection


def pooled(output: Any, mask: torch.Tensor | None, pooling: str | None, use_pooler: bool) -> torch.Tensor:
    """(N, tokens, d) -> (N, d): the projection if there is one, the pooled output if it is asked, else by `pooling`."""
    if isinstance(output, torch.Tensor):
        return output
    for name in EMBEDDINGS:
        if getattr(output, name, None) is not None:
            return getattr(output, name)
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


VIDEO = ("videomae", "vivit", "timesformer", "xclip", "vjepa2")  # values of model_type
NAFLEX = "siglip2"  # takes pictures of any shape, cut into at most so many patches


def image_encoder(model: Any, notes: dict[str, Any], pooling: str | None, device: str) -> Encoder:
    """The vision side of a model as an encoder."""
    batched = device != "cpu"
    if model.config.model_type in VIDEO:
        return _video_encoder(model, notes, pooling, device)
    if model.config.model_type == NAFLEX:
        transform: Any = naflex_transform(notes, model.config.vision_config)
        forward: Callable[[torch.Tensor], torch.Tensor] = partial(_flexible, model, transform.patch, device)
        side = transform.patch
    else:
        transform = image_transform(notes, model.config)
        forward, side = partial(_seen, model, pooling, device), transform.size
    encode = partial(each, forward, batched=batched)
    return Encoder("image", encode([np.zeros((1, 3, side, side), np.float32)]).shape[1], transform, encode)


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
    mean, std = _mean_and_std(notes, IMAGENET_MEAN, IMAGENET_STD)
    return ImageTransform(
        int(final),
        resize=tuple(size) if isinstance(size, (tuple, list)) else int(size),
        resample=int(notes.get("resample", 3)),
        mean=mean,
        std=std,
    )


def _mean_and_std(notes: dict[str, Any], mean: Sequence[float], std: Sequence[float]) -> Any:
    if not notes.get("do_normalize", True):
        mean, std = (0.0,) * 3, (1.0,) * 3
    else:
        mean, std = tuple(notes.get("image_mean") or mean), tuple(notes.get("image_std") or std)
    if notes.get("offset"):  # ViViT: from -1 to 1 first, 2 x - 1
        mean, std = tuple((1 + value) / 2 for value in mean), tuple(value / 2 for value in std)
    return tuple(mean), tuple(std)


def _seen(model: Any, pooling: str | None, device: str, pixels: torch.Tensor) -> torch.Tensor:
    """Vectors of pictures (N, 3, H, W), or of clips (N, frames, 3, H, W)."""
    pixels = pixels.to(device)
    joint = getattr(model, "get_image_features" if pixels.ndim == 4 else "get_video_features", None)
    if joint is not None:
        return pooled(joint(pixel_values=pixels), None, None, True)
    if model.config.model_type == "vjepa2":
        return pooled(model(pixel_values_videos=pixels, skip_predictor=True), None, pooling, True)
    return pooled(model(pixel_values=pixels), None, pooling, True)


def _video_encoder(model: Any, notes: dict[str, Any], pooling: str | None, device: str) -> Encoder:
    config = getattr(model.config, "vision_config", model.config)
    frames: int = config.num_frames if hasattr(config, "num_frames") else config.frames_per_clip
    transform = image_transform(notes, config)

    @torch.inference_mode()
    def encode(items: list[np.ndarray]) -> np.ndarray:
        rows = [_seen(model, pooling, device, _whole_clip(item, frames)) for item in items]
        return torch.cat(rows).float().cpu().numpy()

    probe = np.zeros((1, 3, transform.size, transform.size), np.float32)
    return Encoder("image", encode([probe]).shape[1], transform, encode, frames=frames)


def _whole_clip(item: np.ndarray, frames: int) -> torch.Tensor:
    """(1, frames, 3, H, W) from the frames of a video, or from a picture."""
    if len(item) not in (1, frames):
        raise InputError(f"this encoder sees {frames} frames at once; got {len(item)}: prepare that many, or a picture")
    return torch.from_numpy(np.broadcast_to(item, (frames, *item.shape[1:])).copy())[None]


@dataclass(frozen=True)
class NaflexTransform:
    """Resize, keeping the shape, to as many whole patches as allowed; then x -> (x / 255 - mean) / std."""

    patch: int = 16
    patches: int = 256
    resample: int = 2
    mean: tuple[float, ...] = (0.5,) * 3
    std: tuple[float, ...] = (0.5,) * 3

    def __call__(self, image: Any) -> np.ndarray:
        """An RGB image of Pillow as float32 (3, H, W), both multiples of the patch."""
        height, width = naflex_size(image.height, image.width, self.patch, self.patches)
        pixels = np.asarray(image.resize((width, height), self.resample), dtype=np.float32).transpose(2, 0, 1) / 255
        return normalised(pixels, self.mean, self.std)


def naflex_transform(notes: dict[str, Any], config: Any) -> NaflexTransform:
    """The transform of a SigLIP2 NaFlex checkpoint."""
    mean, std = _mean_and_std(notes, (0.5,) * 3, (0.5,) * 3)
    patch = int(notes.get("patch_size") or config.patch_size)
    return NaflexTransform(patch, int(notes.get("max_num_patches", 256)), int(notes.get("resample", 2)), mean, std)


def naflex_size(height: int, width: int, patch: int, patches: int) -> tuple[int, int]:
    """The largest size in the shape of the picture, each side rounded up to whole patches, with at most `patches`."""

    def sides(scale: float) -> tuple[int, int]:
        return tuple(max(1, -int(-side * scale // patch)) * patch for side in (height, width))  # type: ignore[return-value]

    small, large = 1e-6, 100.0
    while large - small >= 1e-5:
        scale = (small + large) / 2
        tall, wide = sides(scale)
        small, large = (scale, large) if tall * wide <= patches * patch**2 else (small, scale)
    return sides(small)


def _flexible(model: Any, patch: int, device: str, pixels: torch.Tensor) -> torch.Tensor:
    """Pictures of one shape (N, 3, H, W), patch by patch, each with all its channels last."""
    n, _, height, width = pixels.shape
    cut = pixels.unflatten(3, (-1, patch)).unflatten(2, (-1, patch)).permute(0, 2, 4, 3, 5, 1)  # (N, h, w, p, p, 3)
    shape = (height // patch, width // patch)
    inputs = {
        "pixel_values": cut.flatten(3).flatten(1, 2),
        "pixel_attention_mask": torch.ones(n, shape[0] * shape[1], dtype=torch.int32),
        "spatial_shapes": torch.tensor([shape] * n),
    }
    inputs = {key: value.to(device) for key, value in inputs.items()}
    return pooled(model.get_image_features(**inputs), None, None, True)


def hear(model: Any, extractor: Any, pooling: str | None, device: str, items: list[np.ndarray]) -> np.ndarray:
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
        return pooled(model.get_audio_features(**inputs), None, None, True).float()
    run = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
    values = {key: value for key, value in inputs.items() if "mask" not in key}
    output = run(**values)
    return pooled(output, _heard(output, extractor, len(samples)), pooling, True).float()


def _heard(output: Any, extractor: Any, samples: int) -> torch.Tensor | None:
    """(1, steps) which steps of Whisper's encoder begin within the sound; it fills every sound up to 30 s with silence."""
    whole = getattr(extractor, "n_samples", None)
    if not whole:
        return None
    steps = output.last_hidden_state.shape[1]
    begins = torch.arange(steps, device=output.last_hidden_state.device) * (whole / steps)
    return (begins < samples)[None]


def preprocessor(transformers: ModuleType, name: str) -> dict[str, Any]:
    """What preprocessor_config.json says; nothing if there is none."""
    for place in ("preprocessor_config.json", "video_preprocessor_config.json"):
        file = read_file(transformers, name, place)
        if file is not None:
            return json.loads(file)
    merged = json.loads(read_file(transformers, name, "processor_config.json") or "{}")
    return merged.get("image_processor") or merged.get("video_processor") or merged.get("feature_extractor") or {}


def read_file(transformers: ModuleType, name: str, file: str) -> str | None:
    path = transformers.utils.cached_file(name, file, _raise_exceptions_for_missing_entries=False)
    if path is None:
        return None
    with open(path, encoding="utf-8") as stream:
        return stream.read()


LONGEST = 512  # tokens of a text, where a model has positions
ENDLESS = 10**9  # tokenizers without a limit say a number beyond this
FILLED = ("siglip", "siglip2")  # trained on texts that are padded to the full length, without a mask


def text_encoder(
    transformers: ModuleType, model: Any, name: str, pooling: str | None, device: str, batched: bool
) -> Callable[[list[str]], np.ndarray]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(name)
    settings = json.loads(read_file(transformers, name, "sentence_bert_config.json") or "{}")
    modules = json.loads(read_file(transformers, name, "modules.json") or "[]")
    pool = json.loads(read_file(transformers, name, "1_Pooling/config.json") or "{}")
    text_config = getattr(model.config, "text_config", model.config)
    given = [settings.get("max_seq_length"), tokenizer.model_max_length]
    if hasattr(text_config, "max_position_embeddings"):
        given += [text_config.max_position_embeddings, LONGEST]
    longest = min(limit for limit in given if limit)
    pooling = pooling or ("cls" if pool.get("pooling_mode_cls_token") else None)
    normalise = any("Normalize" in module.get("type", "") for module in modules)
    cut = longest < ENDLESS
    limits = {"truncation": cut, "max_length": longest if cut else None}

    @torch.inference_mode()
    def encode(texts: list[str], batched: bool = batched) -> np.ndarray:
        rows = []
        for group in [texts] if batched else [[text] for text in texts]:
            fill = "max_length" if model.config.model_type in FILLED else len(group) > 1
            tokens = tokenizer(group, padding=fill, return_tensors="pt", **limits).to(device)
            if fill == "max_length":
                tokens = {"input_ids": tokens["input_ids"]}
            if hasattr(model, "get_text_features"):
                vectors = pooled(model.get_text_features(**tokens), None, None, True)
            else:
                run = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
                vectors = pooled(run(**tokens), tokens.get("attention_mask"), pooling, False)
            rows.append(torch.nn.functional.normalize(vectors, dim=1) if normalise else vectors)
        return torch.cat(rows).float().cpu().numpy()

    return encode


SHOWN, QUOTED = 3, '"{}"'
NEVER_USED = ("masked_spec_embed", "*.masked_spec_embed", "*position_ids")  # of training, or counted anew
HEADS = (  # of the tasks that checkpoints were trained for; no encoder needs them
    *("cls.*", "classifier.*", "lm_head.*", "qa_outputs.*", "score.*", "predictions.*", "sop_classifier.*"),
    *("cls_classifier.*", "distillation_classifier.*", "fc_norm.*", "decoder.*", "encoder_to_decoder.*", "mask_token"),
    *("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*", "discriminator_predictions.*"),
    *("quantizer.*", "project_q.*", "project_hid.*", "projector.*", "layer_weights"),
)


def load_model(
    transformers: ModuleType, name: str, config: Any, *, unused: Sequence[str] = (), allow: Sequence[str] = ()
) -> Any:
    """The model of a checkpoint, in single precision.

    Parameters
    ----------
    transformers : module
    name : str
        Local path or name.
    config : config of transformers
        Its `architectures` tell whether the checkpoint has a projection, which is then kept.
    unused : sequence of str
        Patterns of weights that the features do not depend on, so that they may be missing.
    allow : sequence of str
        Patterns of weights that the user allows to be missing or dropped.

    Raises
    ------
    InputError
        If a weight is missing, which would be random, or dropped, and its name matches none of the patterns.
    """
    maker = _with_projection(transformers, config) or transformers.AutoModel
    bars = transformers.utils.logging
    shown, level = bars.is_progress_bar_enabled(), bars.get_verbosity()
    bars.disable_progress_bar()
    bars.set_verbosity_error()  # its report of keys; ours is below
    try:
        model, report = maker.from_pretrained(name, dtype=torch.float32, output_loading_info=True)
    finally:
        bars.set_verbosity(level)
        if shown:
            bars.enable_progress_bar()
    missing = _others(report["missing_keys"], [*NEVER_USED, *unused, *allow])
    dropped = _others(report["unexpected_keys"], [*NEVER_USED, *HEADS, *allow])
    if missing:
        advice = " or a pooling that does without it (+cls, +mean)" if any("pooler" in key for key in missing) else ""
        raise InputError(
            f'the checkpoint "{name}" has no {beginning(missing, SHOWN, QUOTED)}, which would be random; take one that '
            f"has it{advice}, or allow it by name: +allow={_pattern(missing)}"
        )
    if dropped:
        raise InputError(
            f'the checkpoint "{name}" holds {beginning(dropped, SHOWN, QUOTED)}, for which {type(model).__name__} has no '
            f"place, so that its features would be others; allow it by name if that does not matter: +allow={_pattern(dropped)}"
        )
    return model


def unused_parts(config: Any, pooler: bool) -> list[str]:
    """Patterns of weights that do not touch the features: a pooling layer that is not asked, and decoders."""
    parts = [] if pooler else ["pooler.*", "*.pooler.*"]
    return [*parts, "decoder.*"] if getattr(config, "is_encoder_decoder", False) else parts


def _with_projection(transformers: ModuleType, config: Any) -> Any:
    """The class of a checkpoint of one side of a joint model with its projection; None for other checkpoints."""
    names = getattr(config, "architectures", None) or []
    named = [name for name in names if name.endswith("WithProjection") and hasattr(transformers, name)]
    return getattr(transformers, named[0]) if named else None


def _others(keys: Iterable[str], patterns: Sequence[str]) -> list[str]:
    return sorted(key for key in keys if not any(fnmatchcase(key, pattern) for pattern in patterns))


def _pattern(keys: list[str]) -> str:
    """A pattern for the first of them: the part that it belongs to."""
    return f"{keys[0].split('.')[0]}.*" if "." in keys[0] else keys[0]


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


def load_st(reference: str, device: str = "cpu") -> Encoder:
    """A model of sentence-transformers as an encoder of texts.

    Parameters
    ----------
    reference : str
        Local path or name; after "#" the name of one of the model's prompts, which is put before every text.
    device : str
    """
    name, _, prompt = reference.partition("#")
    if not name:
        raise InputError('an encoder "st:" needs a local path or a name after the colon')
    library = need("sentence_transformers", "sentence-transformers", f"the encoder st:{name}")
    try:
        model = library.SentenceTransformer(name, device=device)
    except (OSError, ValueError) as error:
        raise InputError(f'the model "{name}" cannot be loaded: {str(error).splitlines()[0]}') from error
    if prompt and prompt not in model.prompts:
        prompts = ", ".join(f"#{one}" for one in model.prompts) or "none"
        raise InputError(f'the model "{name}" has no prompt "{prompt}"; it has {prompts}')

    def encode(texts: list[str]) -> np.ndarray:
        groups = [[text] for text in texts] if device == "cpu" else [texts]  # one by one, as in `text_encoder`
        how = {"prompt_name": prompt or None, "show_progress_bar": False, "convert_to_numpy": True}
        return np.concatenate([np.asarray(model.encode(group, **how), dtype=np.float32) for group in groups])

    return Encoder("text", encode(["a"]).shape[1], same, encode)
