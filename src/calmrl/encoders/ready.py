"""Encoders that are loaded once per process, and a short signature that tells whether two encoders are the same."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calmrl.encoders.base import Encoder
from calmrl.encoders.registry import is_path, load_encoder, spec_of
from calmrl.errors import need

SIGNATURE = 8  # numbers
TOLERANCE = 0.05  # of numbers that are about standard normal for two unrelated vectors


@dataclass(frozen=True)
class ReadyEncoder:
    """An encoder and the lock under which it runs: some keep their input in place while they work."""

    name: str
    spec: Any  # the entry of ENCODERS it was made from; None for "hf:" and "st:"
    encoder: Encoder
    lock: threading.Lock

    def encode(self, items: Sequence[Any]) -> np.ndarray:
        """Vectors (items, width) float32."""
        with self.lock:
            return self.encoder.encode(list(items))


_READY: dict[tuple[str, str], ReadyEncoder] = {}
_LOADING = threading.Lock()


def ready_encoder(name: str, device: str = "cpu") -> ReadyEncoder:
    """The encoder of that name, loaded at the first call in this process."""
    spec = None if is_path(name) else spec_of(name)
    with _LOADING:
        ready = _READY.get((name, device))
        if ready is None or ready.spec is not spec:  # the entry may have been replaced
            ready = _READY[name, device] = ReadyEncoder(name, spec, load_encoder(name, device), threading.Lock())
    return ready


def signature(ready: ReadyEncoder) -> list[float]:
    """Eight numbers that differ between encoders: random signs applied to the unit vector of a fixed item.

    Other weights, another pooling or another preparation of the input change them; another machine does not, beyond
    `TOLERANCE`.
    """
    vector = ready.encode([_fixed_item(ready.encoder)])[0].astype(np.float64)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (SIGNATURE, len(vector)))
    return [round(float(value), 3) for value in signs @ vector / max(float(np.linalg.norm(vector)), 1e-30)]


def same_signature(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two signatures belong to the same encoder."""
    return len(one) == len(other) and bool(np.abs(np.subtract(one, other)).max(initial=0.0) <= TOLERANCE)


def _fixed_item(encoder: Encoder) -> Any:
    if encoder.reads_files:
        return np.sin(np.arange(math.prod(encoder.item_shape))).reshape(encoder.item_shape).astype(np.float32)
    if encoder.kind == "text":
        return encoder.prepare("a red boat on a quiet lake")
    if encoder.kind == "audio":
        seconds = np.arange(encoder.rate) / encoder.rate
        return encoder.prepare(np.sin(2 * np.pi * (200 + 600 * seconds) * seconds).astype(np.float32) / 2)
    image = need("PIL.Image", "media", "reading images")
    y, x = np.mgrid[0:96, 0:128]
    pixels = np.stack([2 * x, 255 - 2 * y, (x + y) % 256], axis=2).astype(np.uint8)  # (96, 128, 3)
    return encoder.prepare(image.fromarray(pixels))[None]
