"""What an encoder is: how to prepare an item (in a worker process) and how to turn prepared items into vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

MEDIA = ("image", "text", "audio")
PEAK = 0.9


def same(item: Any) -> Any:
    """Nothing to prepare."""
    return item


def same_peak(samples: np.ndarray) -> np.ndarray:
    """Scale so that the loudest sample is 0.9; silence stays silence."""
    loudest = float(np.abs(samples).max(initial=0.0))
    return samples if loudest == 0 else samples * np.float32(PEAK / loudest)


@dataclass(frozen=True)
class Encoder:
    """A frozen encoder that is ready to run.

    kind      what goes in                           prepare gets             encode gets a list of
    image     a picture, or the frames of a video    one picture of Pillow    (frames, 3, H, W) float32
    text      a text                                 the text                 str
    audio     mono sound at `rate`                   samples (T,) float32     what prepare returns

    `prepare` runs in worker processes, so it must pickle. `encode` returns (items, width) float32; the vector of an
    item does not depend on the other items. `frames` is how many frames of a video it sees at once; None: any number.
    With `reads_files`, `prepare` gets the path of a file and decodes it by its own rules, and `item_shape` is the shape
    of what it returns.
    """

    kind: str
    width: int
    prepare: Callable[[Any], Any]
    encode: Callable[[list[Any]], np.ndarray]
    rate: int = 16_000
    frames: int | None = None
    reads_files: bool = False
    item_shape: tuple[int, ...] = ()


def each(forward: Callable[[torch.Tensor], torch.Tensor], items: Sequence[np.ndarray], batched: bool) -> np.ndarray:
    """Run `forward` on items of shape (frames, ...) and average over the frames of each item.

    Item by item unless `batched`: on a CPU that is as fast, and the last bits of a matrix product depend on its size.
    """
    import torch  # here, so that processes that only prepare items start without it

    if batched and len({item.shape[1:] for item in items}) == 1:
        with torch.inference_mode():
            flat = forward(torch.from_numpy(np.concatenate(items))).float().cpu()
        parts = flat.split([len(item) for item in items])
    else:
        with torch.inference_mode():
            single = ([forward(torch.from_numpy(frame[None])).float().cpu() for frame in item] for item in items)
            parts = tuple(map(torch.cat, single))
    return torch.stack([part.mean(dim=0) for part in parts]).numpy()
