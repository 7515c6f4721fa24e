"""Encoders that run the official code of their authors: ImageBind, LanguageBind, InternVideo.

The user installs the package; nothing is fetched and run. Files are decoded and prepared by the package's own functions.
Its vectors are scaled to length 1: some packages multiply them by a temperature, which scores need and features do not.
What stands after "@" in the name of an encoder names its weights:

- imagebind_huge.pth, in `.checkpoints` of the working directory, where the package itself puts it, or a path:
  "imagebind_image@weights/imagebind_huge.pth". It is read as tensors alone.
- LanguageBind's account on Hugging Face, from which its package fetches them, once, into the usual cache; others of that
  account: "languagebind_video@LanguageBind_Video". The text side is that of LanguageBind_Image: all checkpoints share it.
- InternVideo (MM-L-14, or B-16) must be named: "internvideo_video@InternVideo-MM-L-14.ckpt". It is read as tensors alone,
  and one that lacks weights is refused: the official loader would leave them random.
"""

import importlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from calmrl._support.tensor_files import read_checkpoint
from calmrl.arrays import Array, check, like_input, to_tensor
from calmrl.data.media.manifest import AUDIO, IMAGE, VIDEO
from calmrl.data.media.problems import Unreadable
from calmrl.encoders.base import Encoder, same
from calmrl.encoders.registry import ENCODERS
from calmrl.errors import InputError

FAULTS = (ImportError, AttributeError, NameError, TypeError)  # of a package and what it needs, not of a file
Forward = Callable[[Any], torch.Tensor]  # a batch of prepared items -> (items, width)


def official(module: str, entry: str) -> ModuleType:
    """Import a module of the package of an entry of ENCODERS, or say how to install it."""
    spec = ENCODERS[entry]
    try:
        return importlib.import_module(module)
    except FAULTS as error:
        if isinstance(error, ModuleNotFoundError) and error.name == spec.package:
            raise InputError(
                f'the encoder "{entry}" runs the package "{spec.package}", which is not installed; run: {spec.install}'
            ) from error
        raise InputError(
            f'the package "{spec.package}" of the encoder "{entry}" cannot be imported: {error}; install what it asks for '
            f"({spec.install}), if need be in an environment of its own: docs/how-to/files.md says how to bring its features"
        ) from error


def for_files(
    kind: str, item_shape: tuple[int, ...], read: Callable[[str], np.ndarray], forward: Forward, device: str
) -> Encoder:
    """An encoder of files that the package reads itself: `read` gives an item of this shape."""
    encode = partial(encode_arrays, forward, device)
    width = encode([np.zeros(item_shape, np.float32)]).shape[1]
    return Encoder(kind, width, read, encode, reads_files=True, item_shape=item_shape)


def for_texts(forward: Forward) -> Encoder:
    """An encoder of texts; `forward` gets a list of one text."""
    encode = partial(encode_texts, forward)
    return Encoder("text", encode(["a"]).shape[1], same, encode)


@torch.inference_mode()
def encode_arrays(forward: Forward, device: str, items: Sequence[np.ndarray]) -> np.ndarray:
    """Unit vectors (items, width): one by one on a CPU, so that an item's bits do not depend on the others."""
    together = device != "cpu" and len({item.shape for item in items}) == 1
    groups = [items] if together else [[item] for item in items]
    return np.concatenate([unit(forward(torch.from_numpy(np.stack(group)).to(device))) for group in groups])


@torch.inference_mode()
def encode_texts(forward: Forward, texts: Sequence[str]) -> np.ndarray:
    return np.concatenate([unit(forward([text])) for text in texts])


def unit(vectors: torch.Tensor) -> np.ndarray:
    """Rows of length 1, in single precision."""
    return normalize(vectors.float(), dim=-1).cpu().numpy()


@contextmanager
def same_draws() -> Iterator[None]:
    """The same random numbers every time, and afterwards the generators as they were.

    Official preparations draw crops and flips even where they are documented for inference.
    """
    before, draws = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(draws)  # noqa: NPY002


def read_officially(package: str, read: Callable[[str], torch.Tensor], path: str) -> np.ndarray:
    """What a function of the package makes of one file; what it cannot decode is an Unreadable."""
    try:
        with same_draws():
            return read(path).float().cpu().numpy()
    except FAULTS:
        raise
    except Exception as error:  # each decoder has errors of its own
        raise Unreadable(f"not readable by {package}", f"{path}: {error}") from error


def must_be(medium: str, path: str, entry: str, instead: str) -> None:
    """Raise Unreadable where the suffix of a file says that it is another medium: "image", "video" or "audio"."""
    media = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}
    other = next((name for name, suffixes in media.items() if path.lower().endswith(suffixes)), medium)
    if other != medium and (medium, other) != ("audio", "video"):
        raise Unreadable(f"{other}, not {medium}", f"{path}: {entry} reads {medium} files; {instead}")


# ---- ImageBind: images, videos, audio and texts in one space of width 1024

IMAGEBIND_PLACE = ".checkpoints/imagebind_huge.pth"
IMAGEBIND_ADDRESS = "https://dl.fbaipublicfiles.com/imagebind/imagebind_huge.pth"


def imagebind_image(weights: str | None, device: str) -> Encoder:
    """Images, and videos: the mean over the clips and crops that the package takes from a video."""
    return for_files(
        "image", (3, 224, 224), _imagebind_vision, partial(_run_imagebind, weights, device, "vision"), device
    )


def imagebind_audio(weights: str | None, device: str) -> Encoder:
    """Audio: the mean over three clips of two seconds, each (channel, filter banks, steps)."""
    return for_files(
        "audio", (3, 1, 128, 204), _imagebind_audio, partial(_run_imagebind, weights, device, "audio"), device
    )


def imagebind_text(weights: str | None, device: str) -> Encoder:
    """Texts of up to 77 tokens; longer ones are cut."""
    return for_texts(partial(_imagebind_texts, weights, device))


def _imagebind_texts(weights: str | None, device: str, texts: list[str]) -> torch.Tensor:
    data = official("imagebind.data", "imagebind_text")
    return _run_imagebind(weights, device, "text", data.load_and_transform_text(texts, device))


def _imagebind_vision(path: str) -> np.ndarray:
    """An image (3, 224, 224), or a video (clips x crops, 3, 2, 224, 224)."""
    data = official("imagebind.data", "imagebind_image")
    read = data.load_and_transform_video_data if path.lower().endswith(VIDEO) else data.load_and_transform_vision_data
    return read_officially("imagebind", lambda file: read([file], "cpu")[0], path)


def _imagebind_audio(path: str) -> np.ndarray:
    data = official("imagebind.data", "imagebind_audio")
    return read_officially("imagebind", lambda file: data.load_and_transform_audio_data([file], "cpu")[0], path)


def _run_imagebind(weights: str | None, device: str, modality: str, inputs: torch.Tensor) -> torch.Tensor:
    model: Any = _imagebind_model(weights or IMAGEBIND_PLACE, device)
    return model({modality: inputs})[modality]


@lru_cache(maxsize=1)
def _imagebind_model(path: str, device: str) -> Any:
    """The model with the weights of a file; all sides share it."""
    models = official("imagebind.models.imagebind_model", "imagebind_image")
    if not Path(path).is_file():
        raise InputError(
            f"there are no weights of ImageBind at {path}; download {IMAGEBIND_ADDRESS} and name the file, for instance "
            "image=imagebind@imagebind_huge.pth"
        )
    model = models.imagebind_huge(pretrained=False)
    try:
        model.load_state_dict(read_checkpoint(path))  # all of them: one that is missing would be random
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} does not hold the weights of {type(model).__name__}: {reason}") from error
    return model.eval().to(device)


def imagebind_features(z: Mapping[str, Array], present: Array | None = None) -> dict[str, Array]:
    """What ImageBind gives, each row scaled to length 1; NaN where a modality is missing.

    ImageBind multiplies its unit vectors by a temperature of each modality (none for vision, 20 for audio, a learned one
    up to 100 for text). Scores between two modalities are meant to include it, but a Gram matrix of such vectors is
    dominated by the longest one: singular values, volumes and the latent model's noise would measure the temperature
    instead of agreement. Use this on all features that come from ImageBind, then train `Heads` on them.
    """
    views = check(z, present)
    unit_rows = {}
    for j, (name, array) in enumerate(views.arrays.items()):
        rows = to_tensor(array).float()
        there = views.present[:, j].to(rows.device)
        flat = there & (torch.where(there[:, None], rows, 1.0).norm(dim=1) == 0)
        if flat.any():
            row = int(flat.nonzero()[0, 0])
            raise InputError(f"{name} of row {row} is all 0, which has no direction; mark it missing")
        unit_rows[name] = like_input(torch.where(there[:, None], normalize(rows, dim=1), torch.nan), array)
    return unit_rows


# ---- LanguageBind: images, videos, audio and texts in one space of width 768

LANGUAGEBIND = {
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


def languagebind_image(weights: str | None, device: str) -> Encoder:
    return _languagebind("image", weights, device)


def languagebind_video(weights: str | None, device: str) -> Encoder:
    """Videos: as many frames as the checkpoint was trained on, seen at once."""
    return _languagebind("video", weights, device)


def languagebind_audio(weights: str | None, device: str) -> Encoder:
    return _languagebind("audio", weights, device)


def languagebind_text(weights: str | None, device: str) -> Encoder:
    """Texts of up to 77 tokens; longer ones are cut."""
    return for_texts(partial(_languagebind_texts, weights or LANGUAGEBIND["text"], device))


def _languagebind(side: str, weights: str | None, device: str) -> Encoder:
    checkpoint = weights or LANGUAGEBIND[side]
    config = _languagebind_model(side, checkpoint, device).modality_config[side]
    forward = partial(_run_languagebind, side, checkpoint, device)
    shape = _languagebind_shape(side, config.vision_config)
    return for_files("image" if side == "video" else side, shape, LanguageBindReader(side, config), forward, device)


def _languagebind_shape(side: str, vision: Any) -> tuple[int, ...]:
    """Of what its processor makes of a file; audio is three images of filter banks."""
    if side == "audio":
        return 3, vision.num_mel_bins, vision.target_length
    pixels = (vision.image_size, vision.image_size)
    return (3, vision.num_frames, *pixels) if side == "video" else (3, *pixels)


@dataclass
class LanguageBindReader:
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


def _run_languagebind(side: str, checkpoint: str, device: str, pixels: torch.Tensor) -> torch.Tensor:
    return _languagebind_model(side, checkpoint, device)({side: {"pixel_values": pixels}})[side]


def _languagebind_texts(checkpoint: str, device: str, texts: list[str]) -> torch.Tensor:
    package = official("languagebind", "languagebind_text")
    tokens = _languagebind_tokenizer(checkpoint)(
        texts, max_length=77, padding="max_length", truncation=True, return_tensors="pt"
    )
    model = _languagebind_model("image", checkpoint, device)
    return model({"language": package.to_device(tokens, device)})["language"]


@lru_cache(maxsize=3)
def _languagebind_model(side: str, checkpoint: str, device: str) -> Any:
    """One side and the text side; `use_temp=False` leaves out the temperature."""
    package = official("languagebind", f"languagebind_{side}")
    try:
        model = package.LanguageBind(clip_type={side: checkpoint}, use_temp=False, cache_dir=None)
    except OSError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"the weights {checkpoint} of LanguageBind cannot be loaded: {reason}") from error
    return model.eval().to(device)


@lru_cache(maxsize=1)
def _languagebind_tokenizer(checkpoint: str) -> Any:
    package = official("languagebind", "languagebind_text")
    return package.LanguageBindImageTokenizer.from_pretrained(f"LanguageBind/{checkpoint}", cache_dir=None)


# ---- InternVideo: videos and texts in one space

INTERNVIDEO_MASK = "text_mask_embedding"  # of masked training; no feature depends on it


def internvideo_video(weights: str | None, device: str) -> Encoder:
    """Videos: eight frames, seen at once."""
    forward = partial(_internvideo_videos, _named_checkpoint(weights, "video"), device)
    return for_files("image", (3, 8, 224, 224), _internvideo_file, forward, device)


def internvideo_text(weights: str | None, device: str) -> Encoder:
    """Texts of up to 77 tokens; longer ones are cut."""
    return for_texts(partial(_internvideo_texts, _named_checkpoint(weights, "text"), device))


def _internvideo_file(path: str) -> np.ndarray:
    """(3, 8, 224, 224)."""
    must_be("video", path, "internvideo_video", "images and audio need another encoder")
    package = official("InternVideo", "internvideo_video")
    with old_integer_name():
        return read_officially("InternVideo", package.load_video, path)


def _internvideo_videos(path: str, device: str, frames: torch.Tensor) -> torch.Tensor:
    return _internvideo_model(path, device).encode_video(frames)


def _internvideo_texts(path: str, device: str, texts: list[str]) -> torch.Tensor:
    tokens = official("InternVideo", "internvideo_text").tokenize(texts, truncate=True)
    return _internvideo_model(path, device).encode_text(tokens.to(device))


@lru_cache(maxsize=1)
def _internvideo_model(path: str, device: str) -> Any:
    """The model of a checkpoint; both sides share it."""
    models = official("InternVideo.clip_utils.model", "internvideo_video")
    state = read_checkpoint(path).get("state_dict", {})
    weights = {key.removeprefix("clip."): value for key, value in state.items() if key.startswith("clip.")}
    if not weights:
        raise InputError(f'{path} has no state_dict with keys that begin with "clip."; it is not one of InternVideo-MM')
    model = models.build_model(state_dict=weights)
    absent = sorted(set(model.state_dict()) - set(weights) - {INTERNVIDEO_MASK})
    if absent:
        raise InputError(f'{path} has no "{absent[0]}" ({len(absent)} weights are missing), which would be random')
    return model.float().eval().to(device)


def _named_checkpoint(weights: str | None, side: str) -> str:
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
