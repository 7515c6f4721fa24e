"""Items that are colours: a picture, a text that names it, a chord that sounds it; and encoders that see, read and hear it.

python tests/support/colour_world.py COMMAND ...    # the command line with these encoders, for tests that kill it
"""

from __future__ import annotations

import os
import sys
import time
import wave
from pathlib import Path

import numpy as np

from calmrl import Aligner
from calmrl.encoders import ENCODERS, Encoder, EncoderSpec
from calmrl.encoders.base import same

RATE = 16_000
TONES = (400, 800, 1600)  # Hz, for red, green and blue
WIDTHS = {"see": 24, "read": 16, "hear": 12}
NAMES = {"text": "read", "image": "see", "sound": "hear"}
FIXED = {"features": "linear", "unit_rows": False, "whitening": 0.5, "latent_dim": 8, "prior": 10.0, "refine": "never"}
ITEMS = 90  # of the folder that tests share
ENCODED: list[str] = []  # names of encoders, one entry per item that went through them


def settings() -> Aligner:
    """An aligner that needs no search and so fits at once."""
    return Aligner(**FIXED, random_state=0)


def colour(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, number]).integers(0, 256, 3)


def _lift(colours: np.ndarray, name: str) -> np.ndarray:
    """The encoders see the same three numbers, each through another random map."""
    rng = np.random.default_rng(sum(map(ord, name)))
    return (((colours / 127.5) - 1) @ rng.normal(size=(3, WIDTHS[name]))).astype(np.float32)


def _count(name: str, n: int) -> None:
    ENCODED.extend([name] * n)
    time.sleep(n * float(os.environ.get("SLOW_ENCODERS", "0")))


def _see(items: list[np.ndarray]) -> np.ndarray:
    _count("see", len(items))
    return _lift(np.stack([item.mean(axis=(0, 2, 3)) for item in items]), "see")


def _pixels(picture) -> np.ndarray:
    return np.asarray(picture.convert("RGB").resize((4, 4)), np.float32).transpose(2, 0, 1)


def _read(texts: list[str]) -> np.ndarray:
    _count("read", len(texts))
    words = [["0", "0", "0", *text.split()][-3:] for text in texts]
    return _lift(np.array([[float(word) if word.isdigit() else 0.0 for word in three] for three in words]), "read")


def _hear(items: list[np.ndarray]) -> np.ndarray:
    _count("hear", len(items))
    power = [np.abs(np.fft.rfft(samples[:RATE])) * 2 / RATE for samples in items]
    return _lift(np.stack([[p[tone] for tone in TONES] for p in power]) * 1024, "hear")


def _spec(kind: str, name: str, prepare, encode) -> EncoderSpec:
    encoder = Encoder(kind, WIDTHS[name], prepare, encode)
    return EncoderSpec(kind, WIDTHS[name], "for tests", f"{name} 1", "none", "", lambda: encoder)


COLOUR_ENCODERS = {
    "see": _spec("image", "see", _pixels, _see),
    "read": _spec("text", "read", same, _read),
    "hear": _spec("audio", "hear", same, _hear),
}


def register(patch) -> None:
    """Know these encoders by name until the patch (pytest.MonkeyPatch) is undone."""
    for name, spec in COLOUR_ENCODERS.items():
        patch.setitem(ENCODERS, name, spec)


def write_picture(path: Path, rgb: np.ndarray) -> Path:
    from PIL import Image

    Image.fromarray(np.full((8, 8, 3), rgb, np.uint8)).save(path)
    return path


def write_text(path: Path, rgb: np.ndarray) -> Path:
    path.write_text(f"the colour {' '.join(map(str, rgb))}\n")
    return path


def write_sound(path: Path, rgb: np.ndarray) -> Path:
    seconds = np.arange(RATE) / RATE
    chord = sum(level / 1024 * np.sin(2 * np.pi * tone * seconds) for level, tone in zip(rgb, TONES, strict=True))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((chord * 32767).astype("<i2").tobytes())
    return path


WRITERS = {"image": (".png", write_picture), "text": (".txt", write_text), "sound": (".wav", write_sound)}


def has(number: int) -> set[str]:
    """What an item has: most lack something."""
    draws = np.random.default_rng([1, number]).random(3)
    return {name for name, draw in zip(WRITERS, draws, strict=True) if draw < 0.7} or {"image"}


def write_item(root: Path, number: int, modalities: set[str] | None = None, rgb: np.ndarray | None = None) -> str:
    folder = root / ("light" if number % 2 else "dark")
    folder.mkdir(parents=True, exist_ok=True)
    for name in modalities or has(number):
        suffix, write = WRITERS[name]
        write(folder / f"c{number}{suffix}", colour(number) if rgb is None else rgb)
    return f"{folder.name}/c{number}"


def make_folder(root: Path, items: int) -> list[str]:
    return [write_item(root, number) for number in range(items)]


if __name__ == "__main__":
    ENCODERS.update(COLOUR_ENCODERS)
    from calmrl.cli import main

    main(sys.argv[1:])
