"""What encoders that run the official code of a model have in common.

The user installs the package; nothing is fetched and run. Files are decoded and prepared by the package's own functions.
Its vectors are scaled to length 1: some packages multiply them by a temperature, which scores need and features do not.
"""

import importlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

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


def fill(model: Any, state: Mapping[str, Any], path: str) -> None:
    """Weights into a model, all of them: one that is missing would be random, one too many would be dropped."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} does not hold the weights of {type(model).__name__}: {reason}") from error


def is_video(path: str) -> bool:
    return path.lower().endswith(VIDEO)


def must_be(medium: str, path: str, entry: str, instead: str) -> None:
    """Raise Unreadable where the suffix of a file says that it is another medium: "image", "video" or "audio"."""
    media = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}
    other = next((name for name, suffixes in media.items() if path.lower().endswith(suffixes)), medium)
    if other != medium and (medium, other) != ("audio", "video"):
        raise Unreadable(f"{other}, not {medium}", f"{path}: {entry} reads {medium} files; {instead}")
