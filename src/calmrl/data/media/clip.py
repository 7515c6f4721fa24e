"""The beginning of a sound as a small MP3, for pages that let people listen."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from calmrl.data.media.streams import RATE, read_audio
from calmrl.errors import need

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
