"""Real media files for tests, whose content can be read back: frames carry their number, sound has a click."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SIZE = 64


def number_frame(number: int) -> np.ndarray:
    """The number as eight vertical stripes, black or white."""
    bits = [(number >> bit) & 1 for bit in range(8)]
    stripes = np.repeat(np.array(bits, np.uint8) * 255, SIZE // 8)  # (SIZE,)
    return np.broadcast_to(stripes[None, :, None], (SIZE, SIZE, 3)).copy()


def read_number(frame: np.ndarray) -> int:
    stripes = frame.mean(axis=(0, 2)).reshape(8, SIZE // 8).mean(axis=1)
    return sum(int(stripe > 127) << bit for bit, stripe in enumerate(stripes))


def click(seconds: float, length: float, rate: int = 16_000) -> np.ndarray:
    """Silence with 10 ms of a loud tone at one moment."""
    samples = np.zeros(int(length * rate), np.float32)
    tone = 0.8 * np.sin(2 * math.pi * 1000 * np.arange(rate // 100) / rate)
    start = round(seconds * rate)
    samples[start : start + len(tone)] = tone
    return samples


def make_video(
    path: Path,
    frames: int = 40,
    fps: int = 10,
    *,
    sound: np.ndarray | None = None,
    delay: float = 0.0,
    codec: str = "libx264",
    audio_codec: str = "aac",
    options: dict[str, str] | None = None,
    first_time: int = 0,
    draw: Callable[[int], np.ndarray] = number_frame,
) -> Path:
    """A video whose frame i shows i, or what is drawn; `sound` (mono, 16 kHz) starts `delay` seconds after the video."""
    av = pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    with av.open(str(path), "w", options=options or {}) as container:
        video = container.add_stream(codec, rate=fps, options={"g": "12"} if codec == "libx264" else {})
        video.width = video.height = SIZE
        video.pix_fmt = "yuv420p"
        audio = None
        if sound is not None:
            audio = container.add_stream(audio_codec, rate=16_000)
            audio.layout = "mono"
        for i in range(frames):
            frame = av.VideoFrame.from_ndarray(draw(i), format="rgb24")
            frame.pts, frame.time_base = first_time + i, Fraction(1, fps)
            container.mux(video.encode(frame))
        container.mux(video.encode())
        if audio is not None and sound is not None:
            _mux_sound(av, container, audio, sound, delay)
    return path


def make_sound(path: Path, samples: np.ndarray, rate: int = 16_000, codec: str = "pcm_s16le") -> Path:
    av = pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.layout = "mono"
        _mux_sound(av, container, stream, samples, 0.0, rate)
    return path


def _mux_sound(av, container, stream, samples: np.ndarray, delay: float, rate: int = 16_000) -> None:
    step = stream.codec_context.frame_size or 1024
    for start in range(0, len(samples), step):
        chunk = np.ascontiguousarray(samples[None, start : start + step], dtype=np.float32)
        frame = av.AudioFrame.from_ndarray(chunk, format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = rate, start + round(delay * rate), Fraction(1, rate)
        container.mux(stream.encode(frame))
    container.mux(stream.encode())


def make_films(folder: Path, count: int, spacing: float) -> list[dict[str, Any]]:
    """Rows of a manifest: small films with two captions each; every fourth is mute, every fourth has no picture."""
    rows = []
    for i in range(count):
        path = make_video(folder / f"{i}.mp4", 6, 10, sound=click(0.1 + spacing * i, 0.6))
        row = {"id": f"film{i}", "vision": path.name, "audio": path.name, "text": [f"film number {i}", f"the {i}th"]}
        rows.append(row | ({"audio": None} if i % 4 == 1 else {"vision": None} if i % 4 == 2 else {}))
    return rows
