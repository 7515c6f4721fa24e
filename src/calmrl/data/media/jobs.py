"""Decode many files, in order, in this process or in workers."""

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calmrl.data.media.decoding import Decoding, Segments
from calmrl.data.media.images import FrameTransform, open_image
from calmrl.data.media.manifest import modality_in
from calmrl.data.media.problems import Unreadable, check_file
from calmrl.data.media.streams import read_audio, read_frames, read_segments
from calmrl.errors import need

AHEAD = 32  # items that workers may be ahead of the encoder


class Segmented(NamedTuple):
    """A video, and segments of it: prepared frames at first, and vectors in the end."""

    whole: np.ndarray
    spans: np.ndarray  # (n, 2), begin and end in seconds
    parts: Sequence[np.ndarray]


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
    seed: int | None = None  # of what is drawn from a video; None takes the middle frames
    decoding: Decoding | None = None  # of the paper's model; None: equal segments, all channels, FFmpeg's resampling
    reads_files: bool = False  # whether `prepare` gets the path of a file
    segments: float = 0.0  # seconds of the segments of a video that are wanted beside the whole; 0: none
    per_segment: int | None = None  # frames of each, where the encoder wants a certain number

    def run(self) -> Any:
        """The prepared item: (frames, 3, H, W) for pictures and videos, samples for sound, texts as they are."""
        if isinstance(self.source, tuple):
            raise Unreadable("several files", f"{', '.join(self.source)}: here an item has one; keep one of them")
        if self.kind == "text":
            return [self.prepare(text) for text in self.source]
        if self.reads_files:
            with as_file(self.source) as path:
                return self.prepare(path)
        if self.kind == "audio":
            return self.prepare(read_audio(self.source, self.rate, **self._sound_rules()))
        if isinstance(self.source, str) and modality_in(self.source) == "video":
            image = need("PIL.Image", "media", "reading video frames")
            if self.segments and not isinstance(self.prepare, FrameTransform):
                with suppress(Unreadable):  # damage between the frames of the whole does not cost the whole
                    return self._segmented(lambda frame: self.prepare(image.fromarray(frame)))
            generator = None if self.seed is None else _generator(self.seed)
            rule: Segments = "equal" if self.decoding is None else self.decoding.segments
            pictures, _ = read_frames(self.source, self.frames, generator, rule)
            if isinstance(self.prepare, FrameTransform):
                return self.prepare.clip(pictures, self.seed)
            return np.stack([self.prepare(image.fromarray(picture)) for picture in pictures])
        picture = open_image(self.source)
        if isinstance(self.prepare, FrameTransform):
            return self.prepare.clip([np.asarray(picture)], self.seed)
        return self.prepare(picture)[None]

    def _segmented(self, prepare: Callable[[np.ndarray], Any]) -> Segmented:
        whole, spans, parts = read_segments(self.source, self.frames, self.segments, prepare, self.per_segment)
        return Segmented(np.stack(whole), np.array(spans), [np.stack(part) for part in parts])

    def _sound_rules(self) -> dict[str, Any]:
        if self.decoding is None:
            return {}
        return {"channel": self.decoding.channel, "resampling": self.decoding.resampling}


@contextmanager
def as_file(source: Any) -> Iterator[str]:
    """The path of a file with this content; bytes and images of Pillow are written to one that lasts as long as this."""
    if isinstance(source, (str, os.PathLike)):
        check_file(os.fspath(source))
        yield os.fspath(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "content")
        if isinstance(source, (bytes, bytearray)):
            with open(path, "wb") as file:
                file.write(source)
        else:
            source.save(path, format="PNG")
        yield path


def _generator(seed: int) -> Any:
    import torch  # here, because processes that decode for frozen encoders start faster without it

    return torch.Generator().manual_seed(seed)


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
