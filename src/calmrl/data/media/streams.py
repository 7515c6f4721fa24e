"""Video frames and sound through PyAV, on one clock: second 0 is the start of the file, for frames and for samples.

Frames come from n segments of the video, a random one of each in training and the middle one at test. Sound is mono at
16 kHz; sample t x 16000 is what is heard when the frame of second t shows.
"""

from __future__ import annotations

import io
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calmrl._support.parsing import reason_of
from calmrl.data.media.decoding import Channel, Resampling, Segments
from calmrl.data.media.problems import Unreadable, check_file, label_of
from calmrl.data.media.whole_file import check_whole
from calmrl.errors import InputError, MissingExtraError, need

if TYPE_CHECKING:
    import torch


CROSSINGS, ROLLOFF = 6, 0.99


def resample(samples: np.ndarray, old: int, new: int) -> np.ndarray:
    """Samples (T,) at rate `old` -> (ceil(T new / old),) float32 at rate `new`."""
    if old == new:
        return samples.astype(np.float32)
    from scipy.signal import upfirdn  # a fifth of a second, which reading features should not cost

    shared = math.gcd(old, new)
    old, new = old // shared, new // shared
    cut = ROLLOFF * min(old, new)
    reach = old * math.ceil(CROSSINGS * new / cut)  # in steps of 1 / (old new); a multiple of `old`
    place = np.arange(-reach, reach + 1) * cut / (old * new)
    window = np.where(np.abs(place) < CROSSINGS, np.cos(np.pi * place / (2 * CROSSINGS)) ** 2, 0.0)
    filtered = upfirdn(cut / old * np.sinc(place) * window, samples.astype(np.float64), up=new, down=old)
    length = -(-len(samples) * new // old)
    return filtered[reach // old : reach // old + length].astype(np.float32)


RATE = 16_000
BACK = 60  # seconds
MAX_SECONDS = 2 * 3600  # longer sounds are refused, also while they are decoded: a small file can hold days of silence
MAX_PIXELS = 40_000_000  # of a frame
FORMATS = "aac,aiff,asf,avi,flac,flv,matroska,mov,mp3,mpeg,mpegts,mpegvideo,ogg,wav"  # each holds its own content
ONLY_THIS_FILE = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}  # no play lists, which name other files


def segment_frames(total: int, n: int, generator: torch.Generator | None = None, rule: Segments = "equal") -> list[int]:
    """One frame number from each of n segments of `total` frames: the middle one, or a random one of a generator.

    "equal": segment i holds the frames [i total / n, (i + 1) total / n); with fewer frames than segments, frames repeat.
    "split": total = n q + r, and the first r segments have q + 1 frames, the others q; with fewer frames than segments,
    the last one repeats. Of an even number, the middle is the frame before the half.

    >>> segment_frames(100, 8, rule="split")
    [6, 19, 32, 45, 57, 69, 81, 93]
    """
    if n < 1 or total < 1:
        raise InputError(f"at least one frame and one segment are needed; got {total} frames, {n} segments")
    chosen = []
    size, longer = divmod(max(total, n), n)
    for i in range(n):
        if rule == "split":
            first = i * size + min(i, longer)
            last = first + size - (i >= longer)
        else:
            first = i * total // n
            last = max(first + 1, (i + 1) * total // n) - 1
        if generator is None:
            chosen.append((first + last) // 2)
        else:
            import torch

            chosen.append(int(torch.randint(first, last + 1, (), generator=generator)))
    return [min(frame, total - 1) for frame in chosen]


def read_frames(
    path: str | Path, n: int, generator: torch.Generator | None = None, rule: Segments = "equal"
) -> tuple[list[np.ndarray], list[float]]:
    """Frames of a video (RGB uint8, height x width x 3) from n segments, and the second at which each shows.

    All packets are listed first (without decoding), so that frames are counted exactly and a file that was cut off is
    an error; then each frame is decoded from the key frame before it.
    """
    with _open(path, "video") as (container, stream):
        _check_frame_size(stream.codec_context.width, stream.codec_context.height, str(path))
        shown, keys = _packet_times(container, stream, str(path))
        targets = [shown[i] for i in segment_frames(len(shown), n, generator, rule)]
        frames = _decode_at(container, stream, sorted(set(targets)), keys, str(path))
        start = _start(container)
        return [frames[pts] for pts in targets], [float(pts * stream.time_base) - start for pts in targets]


MOST_SEGMENTS = 60  # of a video
PER_SEGMENT = 2  # frames that stand for a segment


def segment_spans(length: float, seconds: float) -> list[tuple[float, float]]:
    """(begin, end) of the segments of a video, in seconds: of that length each, or MOST_SEGMENTS that are longer.

    The last one takes the rest; a video that has only one has none.

    >>> segment_spans(24.0, 10.0)
    [(0.0, 10.0), (10.0, 24.0)]
    >>> segment_spans(14.0, 10.0)
    []
    """
    n = min(MOST_SEGMENTS, round(length / seconds))
    step = length / n if n == MOST_SEGMENTS else seconds
    return [(i * step, (i + 1) * step if i + 1 < n else length) for i in range(n)] if n > 1 else []


def read_segments(
    path: str | Path, n: int, seconds: float, prepare: Callable[[np.ndarray], Any], each: int | None = None
) -> tuple[list[Any], list[tuple[float, float]], list[list[Any]]]:
    """(the frames that `read_frames` gives, spans of the segments of the video, frames of each of these), all prepared.

    The frames of a segment are the key frames next to a quarter and three quarters of it, which cost least to decode, or the
    frames there, where it has no key frame; `each` says how many an encoder needs. No frame is decoded twice.
    """
    with _open(path, "video") as (container, stream):
        _check_frame_size(stream.codec_context.width, stream.codec_context.height, str(path))
        shown, keys = _packet_times(container, stream, str(path))
        whole = [shown[i] for i in segment_frames(len(shown), n)]
        start = _start(container)
        times = [float(pts * stream.time_base) - start for pts in shown]
        spans = segment_spans(times[-1] + (times[-1] - times[0]) / max(1, len(times) - 1), seconds)
        chosen = []
        for begin, end in spans:
            first, stop = bisect_left(times, begin), bisect_left(times, end)
            own = shown[first:stop] or [shown[max(0, first - 1)]]  # what still shows
            targets = [own[i] for i in segment_frames(len(own), each or PER_SEGMENT)]
            if each is None and (near := sorted(set(own) & set(keys))):
                targets = sorted({min(near, key=lambda key: abs(key - pts)) for pts in targets})
            chosen.append(targets)
        every = sorted({*whole, *(pts for targets in chosen for pts in targets)})
        frames = _decode_at(container, stream, every, keys, str(path), prepare)
        return [frames[pts] for pts in whole], spans, [[frames[pts] for pts in targets] for targets in chosen]


def read_audio(
    path: str | Path | bytes, rate: int = RATE, *, channel: Channel = "mix", resampling: Resampling = "ffmpeg"
) -> np.ndarray:
    """The sound of an audio or video file (its path or its bytes) as mono float32 samples at `rate`.

    `channel` "mix" is the mean of all, so that a mono file and its stereo copy are alike; "left" takes the first.
    `resampling` is FFmpeg's, or that of `resample` ("sinc").
    A track that starts later than the file is preceded by silence, so that the samples stay in step with the frames.
    """
    av = need("av", "media", "reading sound")
    with _open(path, "audio") as (container, stream):
        _check_length(_declared_seconds(container, stream), label_of(path))
        own = resampling == "sinc"
        resampler = av.AudioResampler("fltp", None, None if own else rate)

        def mono(piece: Any) -> np.ndarray:
            channels: np.ndarray = piece.to_ndarray()
            return channels.mean(0) if channel == "mix" else channels[0]

        file_rate = stream.rate
        parts: list[np.ndarray] = []
        packets = heard = 0
        for packet in container.demux(stream):
            packets += packet.size > 0
            for frame in packet.decode():
                heard += frame.samples
                _check_length(heard / max(1, frame.sample_rate), label_of(path))
                parts += [mono(piece) for piece in resampler.resample(frame)]
        _check_complete(container, stream, packets, label_of(path))
        if container.format.name == "flac" and stream.duration and heard < stream.duration:
            raise Unreadable("cut off", f"{label_of(path)} has {heard:,} of {stream.duration:,} samples")
        if parts:
            parts += [mono(piece) for piece in resampler.resample(None)]
        begins = float((stream.start_time or 0) * stream.time_base) - _start(container)
    samples = np.concatenate([np.zeros(0, np.float32), *parts])
    if not len(samples):
        raise Unreadable("no sound in the audio track", label_of(path))
    if not np.isfinite(samples).all():
        raise Unreadable("sound with values that are not finite", label_of(path))
    samples = resample(samples, file_rate, rate) if own else samples
    _check_length(abs(begins), label_of(path))
    late = round(begins * rate)
    return np.pad(samples, (late, 0)) if late > 0 else samples[-late:]


def check_stream(path: str | Path, medium: str) -> None:
    """Raise Unreadable unless the file opens and has a stream of the medium, "video" or "audio". Nothing is decoded."""
    with _open(path, medium):
        pass


@contextmanager
def _open(path: str | Path | bytes, medium: str) -> Iterator[tuple[Any, Any]]:
    """The container and its first stream of a medium; whatever FFmpeg refuses becomes Unreadable."""
    av = need("av", "media", f"reading {medium}")
    label = label_of(path)
    if isinstance(path, bytes):
        source: Any = io.BytesIO(path)
    else:
        check_file(label)
        source = label
    check_whole(path if isinstance(path, bytes) else label, label)
    try:
        with av.open(source, metadata_errors="replace", container_options=ONLY_THIS_FILE) as container:
            stream = next(iter(getattr(container.streams, medium)), None)
            if stream is None:
                raise Unreadable(f"no {medium} stream", label)
            yield container, stream
    except (InputError, MissingExtraError):
        raise
    except Exception as error:  # FFmpeg's own errors, and what PyAV makes of damaged numbers
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise Unreadable(f"not decodable as {medium}", f"{label}: {reason}") from error


def _declared_seconds(container: Any, stream: Any) -> float:
    """How long a track is, by what the file says; 0 if it does not say."""
    if stream.duration:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / 1_000_000


def _check_length(seconds: float, label: str) -> None:
    if not seconds <= MAX_SECONDS:
        raise Unreadable("huge sound", f"{label} lasts {seconds:,.0f} s or more; at most {MAX_SECONDS:,} s are decoded")


def _check_frame_size(width: int, height: int, label: str) -> None:
    if width * height > MAX_PIXELS:
        raise Unreadable("huge video", f"{label} has frames of {width} x {height}; at most {MAX_PIXELS:,} are decoded")


def _start(container: Any) -> float:
    """The second of the file's own clock at which it starts."""
    return 0.0 if container.start_time is None else container.start_time / 1_000_000


def _packet_times(container: Any, stream: Any, path: str) -> tuple[list[int], list[int]]:
    """The times (pts) of all frames that show, and of the key frames; both sorted."""
    times, keys, packets = [], [], 0
    for packet in container.demux(stream):
        if packet.size == 0:
            continue
        packets += 1
        pts = packet.pts if packet.pts is not None else packet.dts
        if pts is None:
            raise Unreadable("video without time stamps", path)
        if not packet.is_discard:
            times.append(pts)
        if packet.is_keyframe:
            keys.append(pts)
    _check_complete(container, stream, packets, path)
    if not times:
        raise Unreadable("video without frames", path)
    return sorted(times), sorted(keys)


def _check_complete(container: Any, stream: Any, packets: int, path: str) -> None:
    """mp4 and mov say how many packets there are: fewer means that the file was cut off."""
    if "mp4" in container.format.name and packets < stream.frames:
        raise Unreadable("cut off", f"{path} has {packets} of {stream.frames} packets")


def _decode_at(
    container: Any,
    stream: Any,
    targets: list[int],
    keys: list[int],
    path: str,
    prepare: Callable[[np.ndarray], Any] = lambda frame: frame,
) -> dict[int, Any]:
    """The frames at these times (sorted), prepared. Seeks only where a key frame lies between here and there."""
    frames: dict[int, Any] = {}
    decoder: Iterator[Any] | None = None
    at: float = -math.inf  # time of the last frame decoded
    for target in targets:
        before = bisect_right(keys, target)
        key = keys[before - 1] if before else target
        frame = None
        if decoder is not None and key <= at:
            frame = _next_at(decoder, target, path)
        else:
            for start in (key, target - BACK / stream.time_base):  # MPEG streams land too late: seek further back
                container.seek(int(start), stream=stream, backward=True)
                decoder = container.decode(stream)
                frame = _next_at(decoder, target, path)
                if frame is not None and frame.pts == target:
                    break
        if frame is None or frame.pts != target:
            what = "cut off" if frame is None else "damaged video"
            raise Unreadable(what, f"{path}: the frame at {float(target * stream.time_base):.3f} s cannot be decoded")
        at = frame.pts
        frames[target] = prepare(np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90)).copy())
    return frames


def _next_at(decoder: Iterator[Any], target: int, path: str) -> Any:
    """The next frame at or after a time; None at the end."""
    for frame in decoder:
        _check_frame_size(frame.width, frame.height, path)
        if frame.pts is not None and frame.pts >= target:
            return frame
    return None


SECONDS = 8
BITS = 24_000  # per second


def clip(source: str | Path | bytes) -> bytes:
    """The first seconds of an audio file (its path or its bytes) as a mono MP3; what cannot be read is Unreadable."""
    av = need("av", "media", "cutting a sound")
    samples = np.clip(read_audio(source)[: SECONDS * RATE], -1, 1)
    out = io.BytesIO()
    with av.open(out, "w", format="mp3") as container:
        stream = container.add_stream("libmp3lame", rate=RATE, layout="mono", bit_rate=BITS)
        frame = av.AudioFrame.from_ndarray((samples * 32767).astype(np.int16)[None], format="s16p", layout="mono")
        frame.sample_rate = RATE
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return out.getvalue()
