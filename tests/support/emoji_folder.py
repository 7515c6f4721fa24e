"""A folder of real files, most items incomplete: emoji as pictures, their names as texts, the names spoken as sounds.

    python tests/support/emoji_folder.py FOLDER --items 400 --held-out FOLDER2

Pictures come from the font of the Debian package fonts-noto-color-emoji, sounds from espeak-ng.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import unicodedata
from pathlib import Path

import numpy as np

FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
SIZE = 109  # the only size of the pictures in the font
FOLDERS = {
    "animals": (0x1F400, 0x1F440),
    "food": (0x1F345, 0x1F380),
    "faces": (0x1F600, 0x1F645),
    "travel": (0x1F680, 0x1F6D0),
    "places": (0x1F3A0, 0x1F3F0),
    "objects": (0x1F4A0, 0x1F50A),
    "clothes": (0x1F450, 0x1F490),
    "nature": (0x1F300, 0x1F345),
    "things": (0x1F380, 0x1F3A0),
    "signs": (0x1F910, 0x1F9FF),
}
SHARE = {"png": 0.75, "txt": 0.8, "wav": 0.5}  # of the items that have each


def missing_tools() -> str | None:
    """What is not installed here, or None."""
    if not FONT.is_file():
        return "the font NotoColorEmoji (Debian package fonts-noto-color-emoji) is not installed"
    return None if shutil.which("espeak-ng") else "espeak-ng is not installed"


def emoji() -> list[tuple[str, str]]:
    """(folder, character) of every emoji of one code point that has a name."""
    listed = [(folder, chr(code)) for folder, (low, high) in FOLDERS.items() for code in range(low, high)]
    return [(folder, char) for folder, char in listed if unicodedata.name(char, "")]


def name_of(char: str) -> str:
    return unicodedata.name(char).lower()


def draw(char: str, path: Path) -> bool:
    """The picture of an emoji; False if the font has none."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGBA", (136, 128), (255, 255, 255, 0))
    font = ImageFont.truetype(str(FONT), SIZE)
    ImageDraw.Draw(picture).text((0, 0), char, font=font, embedded_color=True)
    colours = np.asarray(picture)
    if colours[..., 3].max() == 0 or len(np.unique(colours[..., :3].reshape(-1, 3), axis=0)) < 8:
        return False  # an empty box
    picture.save(path)
    return True


def speak(text: str, path: Path) -> None:
    subprocess.run(["espeak-ng", "-w", path.name, text], check=True, capture_output=True, cwd=path.parent)


def make_folder(root: Path, items: int, *, seed: int = 0, complete: bool = False, skip: int = 0) -> list[str]:
    """Write the files of so many items after the first `skip`; returns ids. `complete` items have everything."""
    rng = np.random.default_rng(seed)
    order = [emoji()[i] for i in np.random.default_rng(7).permutation(len(emoji()))]
    trial = root / ".trial.png"
    root.mkdir(parents=True, exist_ok=True)
    ids: list[str] = []
    for folder, char in order:
        if len(ids) == items + skip:
            break
        if not draw(char, trial):
            continue
        stem = name_of(char).replace(" ", "-")
        ids.append(f"{folder}/{stem}")
        if len(ids) <= skip:
            continue
        has = {suffix for suffix, share in SHARE.items() if complete or rng.random() < share} or {"png"}
        base = root / folder / stem
        base.parent.mkdir(exist_ok=True)
        if "png" in has:
            shutil.copy(trial, base.with_name(f"{stem}.png"))
        if "txt" in has:
            base.with_name(f"{stem}.txt").write_text(f"{name_of(char)}\n", encoding="utf-8")
        if "wav" in has:
            speak(name_of(char), base.with_name(f"{stem}.wav"))
    trial.unlink(missing_ok=True)
    return ids[skip:]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--items", type=int, default=400)
    parser.add_argument("--held-out", type=Path, help="another folder, for 100 complete items more")
    options = parser.parse_args()
    print(len(make_folder(options.folder, options.items)), "items")
    if options.held_out:
        print(len(make_folder(options.held_out, 100, complete=True, skip=options.items)), "held-out items")
