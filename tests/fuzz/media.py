"""Pictures, sounds and films. FFmpeg goes on after damage in the middle, so that here only errors, time and memory count;
that files which were cut off are refused is a test of its own (tests/data/media/test_whole_file.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from calmrl.data.media.images import open_image
from calmrl.data.media.streams import read_audio, read_frames
from tests.fuzz.family import Make, Sample
from tests.fuzz.texts import anything
from tests.support.make_media import click, make_sound, make_video

SOUNDS = {"wav": "pcm_s16le", "flac": "flac", "mp3": "libmp3lame", "ogg": "libopus", "m4a": "aac", "aiff": "pcm_s16be"}
FILMS = {
    "mp4": ("libx264", "aac"),
    "mkv": ("libx264", "aac"),
    "avi": ("mpeg4", "libmp3lame"),
    "ts": ("mpeg2video", "mp2"),
}
PICTURES = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
DRAWN = b'<svg xmlns="http://www.w3.org/2000/svg" width="20" height="24"><rect width="9" height="9" fill="red"/></svg>'


def pictures(folder: Path) -> Sample:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    paths = []
    for form in PICTURES:
        path = folder / f"a.{form.lower()}"
        Image.fromarray(pixels).save(path, form)
        paths.append(path)
    return Sample(paths, open_each, "a.", anything)


def documents(folder: Path) -> Sample:
    import pillow_heif
    from PIL import Image

    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8))
    pillow_heif.from_pillow(picture).save(folder / "a.heic")
    picture.save(folder / "a.pdf")
    (folder / "a.svg").write_bytes(DRAWN)
    return Sample([folder / f"a.{suffix}" for suffix in ("heic", "pdf", "svg")], open_each, "a.", anything)


def open_each(path: Path) -> Any:
    return open_image(path).size


def sounds(folder: Path) -> Sample:
    paths = [make_sound(folder / f"a.{suffix}", click(0.1, 0.3), codec=codec) for suffix, codec in SOUNDS.items()]
    return Sample(paths, lambda damaged: len(read_audio(damaged)), "a.", anything)


def films(folder: Path) -> Sample:
    paths = []
    for suffix, (video, audio) in FILMS.items():
        fps = 25 if video == "mpeg2video" else 10
        paths.append(make_video(folder / f"a.{suffix}", 8, fps, sound=click(0.1, 0.4), codec=video, audio_codec=audio))
    return Sample(paths, lambda damaged: read_frames(damaged, 3)[1], "a.", anything)


FAMILIES: dict[str, Make] = {"pictures": pictures, "documents": documents, "sounds": sounds, "films": films}
