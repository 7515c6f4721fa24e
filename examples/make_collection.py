"""A collection of one's own, to try the whole way from files to a search space on: pictures, sounds and short texts.

python examples/make_collection.py collection
calmrl init collection --out work        # says what is there, writes configs, and lists what to run next

551 items of 37 things. A picture is an emoji on transparent ground, turned and scaled; a sound is the spoken name of the
thing in one of several voices; a text is its name. 37 % of the blocks are missing, and only 25 items have all three.
Needs Pillow and, for pictures and sounds like these, an emoji font and espeak-ng; without them it draws shapes and
writes tones.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import wave
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

THINGS = {
    "dog": "🐕", "cat": "🐈", "horse": "🐎", "cow": "🐄", "pig": "🐖", "rooster": "🐓", "duck": "🦆", "frog": "🐸",
    "elephant": "🐘", "whale": "🐋", "snake": "🐍", "owl": "🦉", "bee": "🐝", "spider": "🕷", "turtle": "🐢",
    "apple": "🍎", "banana": "🍌", "strawberry": "🍓", "carrot": "🥕", "bread": "🍞", "pizza": "🍕", "cake": "🎂",
    "car": "🚗", "train": "🚂", "airplane": "✈", "bicycle": "🚲", "boat": "⛵", "rocket": "🚀", "house": "🏠",
    "guitar": "🎸", "drum": "🥁", "trumpet": "🎺", "piano": "🎹", "clock": "⏰", "umbrella": "☂", "tree": "🌳",
    "flower": "🌻",
}  # fmt: skip
FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
FONT_SIZE = 109  # the only size that this font has
VOICES = ("en-us", "en-gb", "en-us+f3", "en-gb+m3", "en-us+f5")
COMPLETE = 0.04  # share of items with all three modalities
PAIRS = 0.795  # with two; the others have one
RATE = 16_000


def main(folder: Path, items: int = 551, seed: int = 0) -> int:
    """Write the collection and return the number of files."""
    rng = np.random.default_rng(seed)
    names = list(THINGS)
    for number in range(items):
        name = names[number % len(names)]
        home = folder / name
        home.mkdir(parents=True, exist_ok=True)
        for modality in has(rng):
            path = home / f"{number:04d}"
            if modality == "text":
                path.with_suffix(".txt").write_text(f"{'an' if name[0] in 'aeiou' else 'a'} {name}\n", encoding="utf-8")
            elif modality == "image":
                picture(name, rng).save(path.with_suffix(".png"))
            else:
                sound(name, path.with_suffix(".wav"), rng)
    return sum(path.is_file() for path in folder.rglob("*"))


def has(rng: np.random.Generator) -> list[str]:
    """The modalities of an item."""
    share = rng.random()
    count = 3 if share < COMPLETE else 2 if share < COMPLETE + PAIRS else 1
    return sorted(rng.choice(["text", "image", "sound"], count, replace=False).tolist())


def picture(name: str, rng: np.random.Generator) -> Image.Image:
    """An emoji, or a shape, on transparent ground."""
    image = Image.new("RGBA", (160, 160))
    draw = ImageDraw.Draw(image)
    if FONT.is_file():
        font = ImageFont.truetype(str(FONT), FONT_SIZE)
        draw.text((12, 20), THINGS[name], font=font, embedded_color=True)
    else:
        kind = list(THINGS).index(name)
        colour = tuple(int(value) for value in np.random.default_rng(kind).integers(40, 220, 3))
        draw.regular_polygon((80, 80, 60), 3 + kind % 6, fill=(*colour, 255))
    turned = image.rotate(float(rng.uniform(-25, 25)), resample=Image.Resampling.BICUBIC, expand=True)
    side = int(rng.integers(96, 240))
    return turned.resize((side, side), Image.Resampling.LANCZOS)


def sound(name: str, path: Path, rng: np.random.Generator) -> None:
    """The spoken name, or tones, as a WAV file."""
    if shutil.which("espeak-ng"):
        voice, speed, pitch = str(rng.choice(VOICES)), int(rng.integers(120, 190)), int(rng.integers(20, 80))
        speak = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", path.name, name]
        subprocess.run(speak, check=True, cwd=path.parent)  # it cuts off paths of more than 200 bytes
        return
    kind = list(THINGS).index(name)
    seconds = np.arange(RATE) / RATE
    tones = np.random.default_rng(kind).uniform(150, 3000, 3) * rng.uniform(0.97, 1.03)
    samples = sum(np.sin(2 * np.pi * tone * seconds) for tone in tones) / 4
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--items", type=int, default=551)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"{main(given.folder, given.items, given.seed)} files in {given.folder}")
