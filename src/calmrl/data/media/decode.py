"""Decode many files, in order, in this process or in workers."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from calmrl.data.media.images import open_image
from calmrl.data.media.streams import read_audio, read_frames
from calmrl.data.media.suffixes import VIDEO
from calmrl.data.media.unreadable import Unreadable
from calmrl.errors import need

AHEAD = 32  # items that workers may be ahead of the encoder


@dataclass(frozen=True)
class Job:
    """One cell to decode, and how its encoder wants it.

    `source` holds texts, or a path, or the bytes of a picture or a sound, or an image of Pillow.
    """

    source: Any
    kind: str
    prepare: Callable[[Any], Any]
    frames: int
    rate: int
    seed: int | None = None  # of the frames drawn from a video; None takes the middle ones

    def run(self) -> Any:
        """The prepared item: (frames, 3, H, W) for pictures and videos, samples for sound, texts as they are."""
        if self.kind == "text":
            return [self.prepare(text) for text in self.source]
        if self.kind == "audio":
            return self.prepare(read_audio(self.source, self.rate))
        if isinstance(self.source, str) and self.source.lower().endswith(VIDEO):
            image = need("PIL.Image", "media", "reading video frames")
            generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
            pictures, _ = read_frames(self.source, self.frames, generator)
            return np.stack([self.prepare(image.fromarray(picture)) for picture in pictures])
        return self.prepare(open_image(self.source))[None]


def decoded(jobs: Sequence[Job], pool: Executor | None, *, keep: bool = True) -> Iterator[Any]:
    """The result of each job in order; an Unreadable where decoding failed. Without `keep` results are None instead."""
    if pool is None:
        for job in jobs:
            yield _attempt(job, keep)
        return
    ahead: deque[Future[Any]] = deque()
    for job in jobs:
        ahead.append(pool.submit(_attempt, job, keep))
        if len(ahead) >= AHEAD:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def _attempt(job: Job, keep: bool) -> Any:
    try:
        result = job.run()
    except Unreadable as error:
        return error
    return result if keep else None
