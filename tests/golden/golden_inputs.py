"""Small inputs of the cases, always the same: rows with holes, feature directories, and items that are colours."""

from __future__ import annotations

import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calmrl import Aligner
from calmrl.data import FeatureSet, open_features, write_features

WIDTHS = {"image": 7, "text": 6, "sound": 5}


def rows(n: int = 60, seed: int = 0, widths: Mapping[str, int] = WIDTHS, dtype: str = "float64"):
    """(z, present): modalities that show three shared numbers; holes hold NaN, the first quarter is complete."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 3))
    z = {name: shared @ rng.normal(size=(3, d)) + 0.4 * rng.normal(size=(n, d)) + 0.5 for name, d in widths.items()}
    present = rng.random((n, len(widths))) < 0.65
    present[np.arange(n), rng.integers(0, len(widths), n)] = True
    present[: n // 4] = True
    for j, name in enumerate(z):
        z[name] = np.where(present[:, [j]], z[name], np.nan).astype(dtype)
    return z, present


def complete(n: int = 40, seed: int = 1, width: int = 6) -> dict[str, np.ndarray]:
    """Complete rows of one width."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, width))
    return {name: shared + 0.6 * rng.normal(size=(n, width)) for name in WIDTHS}


def holes(n: int = 40, seed: int = 2) -> np.ndarray:
    """(n, 3): which modalities rows have; at least one."""
    rng = np.random.default_rng(seed)
    present = rng.random((n, 3)) < 0.6
    present[np.arange(n), rng.integers(0, 3, n)] = True
    return present


def tensors(z: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.nan_to_num(array)).to(dtype) for name, array in z.items()}


def about(n: int) -> dict[str, Any]:
    """What is known of n rows."""
    return {
        "ids": [f"r{i}" for i in range(n)],
        "split": [["train", "train", "val", "train", "test"][i % 5] for i in range(n)],
        "labels": [["dog", "cat", "bird"][i % 3] for i in range(n)],
        "text": [f"caption {i % 17}" for i in range(n)],
        "columns": {"year": [1900 + i for i in range(n)]},
    }


def write_rows(path: str | Path, n: int = 90, seed: int = 0, dtype: str = "float32", **changes: Any) -> Path:
    """A feature directory of `rows` that are known as in `about`."""
    z, present = rows(n, seed, dtype=dtype)
    write_features(path, z, present, **(about(n) | changes))
    return Path(path)


def features(folder: Path, n: int = 24, dtype: str = "float32") -> FeatureSet:
    """A feature set of two modalities, one of them called text."""
    z, present = rows(n, 3, {"image": 4, "text": 3}, dtype)
    write_features(folder, z, present, **about(n))
    return open_features(folder)


# ---- items that are colours: a picture, a text that names it, a chord that sounds it

RATE = 16_000
TONES = (400, 800, 1600)  # Hz, for red, green and blue
SIZES = {"see": 24, "read": 16, "hear": 12}
ENCODERS = {"text": "read", "image": "see", "sound": "hear"}
FIXED = {"features": "linear", "unit_rows": False, "whitening": 0.5, "latent_dim": 8, "prior": 10.0, "refine": "never"}


def colour(number: int) -> np.ndarray:
    return np.random.default_rng([0, number]).integers(0, 256, 3)


def _lift(colours: np.ndarray, name: str) -> np.ndarray:
    rng = np.random.default_rng(sum(map(ord, name)))
    return (((colours / 127.5) - 1) @ rng.normal(size=(3, SIZES[name]))).astype(np.float32)


def _see(items: list[np.ndarray]) -> np.ndarray:
    return _lift(np.stack([item.mean(axis=(0, 2, 3)) for item in items]), "see")


def _pixels(picture: Any) -> np.ndarray:
    return np.asarray(picture.convert("RGB").resize((4, 4)), np.float32).transpose(2, 0, 1)


def _read(texts: list[str]) -> np.ndarray:
    words = [text.split()[-3:] for text in texts]
    return _lift(np.array([[float(word) if word.isdigit() else 0.0 for word in three] for three in words]), "read")


def _hear(items: list[np.ndarray]) -> np.ndarray:
    power = [np.abs(np.fft.rfft(samples[:RATE])) * 2 / RATE for samples in items]
    return _lift(np.stack([[p[tone] for tone in TONES] for p in power]) * 1024, "hear")


def _as_it_is(item: Any) -> Any:
    return item


def know_colours(patch: pytest.MonkeyPatch) -> None:
    """The encoders that see, read and hear colours, by name, until the patch is undone."""
    from calmrl.encoders import ENCODERS as KNOWN
    from calmrl.encoders import Encoder, EncoderSpec

    made = {
        "see": Encoder("image", 24, _pixels, _see),
        "read": Encoder("text", 16, _as_it_is, _read),
        "hear": Encoder("audio", 12, _as_it_is, _hear),
    }
    for name, encoder in made.items():
        spec = EncoderSpec(encoder.kind, encoder.width, "for tests", f"{name} 1", "none", "", lambda e=encoder: e)
        patch.setitem(KNOWN, name, spec)


def write_item(root: Path, number: int, modalities: set[str], rgb: np.ndarray | None = None) -> str:
    """The files of a colour; its id in an index of the folder."""
    folder = root / ("light" if number % 2 else "dark")
    folder.mkdir(parents=True, exist_ok=True)
    rgb = colour(number) if rgb is None else rgb
    if "image" in modalities:
        write_picture(folder / f"c{number}.png", rgb)
    if "text" in modalities:
        (folder / f"c{number}.txt").write_text(f"the colour {' '.join(map(str, rgb))}\n")
    if "sound" in modalities:
        write_sound(folder / f"c{number}.wav", rgb)
    return f"{folder.name}/c{number}"


def write_picture(path: Path, rgb: np.ndarray) -> None:
    from PIL import Image

    Image.fromarray(np.full((8, 8, 3), rgb, np.uint8)).save(path)


def write_sound(path: Path, rgb: np.ndarray) -> None:
    seconds = np.arange(RATE) / RATE
    chord = sum(level / 1024 * np.sin(2 * np.pi * tone * seconds) for level, tone in zip(rgb, TONES, strict=True))
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((chord * 32767).astype("<i2").tobytes())


def colours(root: Path, items: int = 30) -> Path:
    """A folder of colours, of which most lack something."""
    for number in range(items):
        draws = np.random.default_rng([1, number]).random(3)
        has = {name for name, draw in zip(("image", "text", "sound"), draws, strict=True) if draw < 0.7}
        write_item(root, number, has or {"image"})
    return root


def aligner() -> Aligner:
    """One that needs no search and so fits at once."""
    return Aligner(**FIXED, random_state=0)
