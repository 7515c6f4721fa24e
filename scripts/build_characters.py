"""Make the bundled collection `characters` again from the packages of its sources.

    python scripts/build_characters.py --work DIR --download     download, read, compare with the bundle
    python scripts/build_characters.py --work DIR --write        the same with what is in DIR, and replace the bundled file

It needs `apt-get` with the packages of Debian 13, `dpkg`, `npm` and `pip install fonttools pillow`. Features are not in the
file: `calmrl.datasets.characters` computes them from what is.
"""

from __future__ import annotations

import argparse
import bz2
import json
import re
import subprocess
import tarfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from bundling import Groups, debian_package

from calmrl.datasets.characters import BUNDLE, GRID, READINGS, SIDE

DEBIAN = {"unicode-data": "15.1.0-1", "fonts-noto-cjk": "1:20240730+repack1-1"}
STROKES = "hanzi-writer-data", "2.0.1"  # npm
FONT, FACE = "NotoSansCJK-Regular.ttc", "Noto Sans CJK SC"
PIXELS = 8 * SIDE  # of the picture that is made smaller
ASCENT = 0.88  # of the em box of the font
INK = 0.4  # share of a pixel from which it is black
UNITS = 1024 // GRID  # of the drawings, per step of the grid
DESCENT = 128  # units below the baseline, in the drawings
CLOSE = 1.25  # steps of the grid: points that lie closer to the line through their neighbours are left out
HAN = re.compile("[\u3400-\u9fff\U00020000-\U0003ffff]")
NOTICE = (
    "Texts: Unihan 15.1, cut to some properties (Unicode licence). Pictures: Noto Sans CJK SC, made into 24 x 24 black and "
    "white pixels (OFL 1.1). Strokes: hanzi-writer-data 2.0.1, from fonts of Arphic Technology, changed in November 2026: "
    "only the middle lines are kept, on a grid of 64 x 64 and with fewer points (Arphic Public License). The licences are in "
    "characters_NOTICE.txt."
)
# Yale romanisation, in the order of Unicode
INITIALS = (
    "k", "kk", "n", "t", "tt", "l", "m", "p", "pp", "s", "ss", "", "c", "cc", "ch", "kh", "th", "ph", "h",
)  # fmt: skip
VOWELS = (
    "a", "ay", "ya", "yay", "e", "ey", "ye", "yey", "o", "wa", "way", "oy", "yo", "wu", "we", "wey", "wi", "yu", "u",
    "uy", "i",
)  # fmt: skip
FINALS = (
    "", "k", "kk", "ks", "n", "nc", "nh", "t", "l", "lk", "lm", "lp", "ls", "lth", "lph", "lh", "m", "p", "ps", "s",
    "ss", "ng", "c", "ch", "kh", "th", "ph", "h",
)  # fmt: skip
HANGUL = {
    (i + v + f).upper(): chr(0xAC00 + (a * len(VOWELS) + b) * len(FINALS) + c)
    for a, i in enumerate(INITIALS)
    for b, v in enumerate(VOWELS)
    for c, f in enumerate(FINALS)
}
Unihan = dict[str, dict[str, str]]  # property -> character -> value


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for everything that is made on the way")
    parser.add_argument("--download", action="store_true", help="download and unpack the packages first")
    parser.add_argument("--write", action="store_true", help="replace the bundled file")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.download:
        download(options.work)
    arrays = bundle(options.work)
    if BUNDLE.exists():
        with np.load(BUNDLE) as saved:
            for name, array in arrays.items():
                same = name in saved.files and np.array_equal(saved[name], array)
                print(f"{name}: {'same' if same else 'DIFFERS'}")
    if options.write:
        np.savez_compressed(BUNDLE, **arrays)
        print(f"{BUNDLE}: {BUNDLE.stat().st_size / 1e6:.2f} MB")


def download(work: Path) -> None:
    """All packages, unpacked into work/package and work/strokes."""
    for name, version in DEBIAN.items():
        debian_package(name, version, work)
    subprocess.run(["npm", "pack", "@".join(STROKES)], cwd=work, check=True)
    with tarfile.open(work / f"{STROKES[0]}-{STROKES[1]}.tgz") as archive:
        archive.extractall(work / "strokes", filter="data")


def bundle(work: Path) -> dict[str, np.ndarray]:
    """The arrays of the bundled file. Rows are the characters that have a definition, by code point."""
    readings, variants, sources = (unihan(work, name) for name in ("Readings", "Variants", "IRGSources"))
    characters = sorted(readings["kDefinition"])
    texts = {name: readings[f"k{name.capitalize()}"] for name in ("definition", *READINGS)}
    texts["korean"] = korean(readings)
    return {
        "notice": np.array(NOTICE),
        "points": np.array([ord(character) for character in characters], dtype=np.uint32),
        **{name: lines([values.get(character, "") for character in characters]) for name, values in texts.items()},
        "radical": np.array([radical(sources["kRSUnicode"][character]) for character in characters], dtype=np.uint8),
        "group": groups(characters, readings["kDefinition"], variants),
        **glyphs(work, characters),
        **strokes(work, characters),
    }


def unihan(work: Path, name: str) -> Unihan:
    """The properties of a file of the Unihan database."""
    values: Unihan = defaultdict(dict)
    with bz2.open(work / f"package/usr/share/unicode/Unihan_{name}.txt.bz2", "rt", encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("U+"):
                point, key, value = line.rstrip("\n").split("\t")
                values[key][chr(int(point[2:], 16))] = value
    return values


def lines(values: list[str]) -> np.ndarray:
    """Texts as the bytes of lines; an empty line where there is none."""
    if any("\n" in value for value in values):
        raise SystemExit("a text has several lines")
    return np.frombuffer("\n".join(values).encode(), np.uint8)


def korean(readings: Unihan) -> dict[str, str]:
    """In Hangul: kHangul without its sources, or kKorean, which is romanised, where there is none."""
    spelled = {
        character: " ".join(HANGUL[part] for part in value.split()) for character, value in readings["kKorean"].items()
    }
    return spelled | {
        character: " ".join(part.partition(":")[0] for part in value.split())
        for character, value in readings["kHangul"].items()
    }


def radical(value: str) -> int:
    """ "85.0" -> 85, "90'.3 85.1" -> 90"""
    return int(value.split()[0].partition(".")[0].rstrip("'"))


def groups(characters: list[str], definitions: dict[str, str], variants: Unihan) -> np.ndarray:
    """The first row of each row's group: variants of any kind, and what a definition names, as in "same as 藕"."""
    row_of = {character: row for row, character in enumerate(characters)}
    joined = Groups(characters)
    named = [
        (c, [chr(int(p, 16)) for p in re.findall(r"U\+([0-9A-F]+)", v)])
        for kind in variants.values()
        for c, v in kind.items()
    ]
    named += [(character, HAN.findall(definitions[character])) for character in characters]
    for character, others in named:
        for other in others:
            if character in row_of and other in row_of:
                joined.join(row_of[character], row_of[other])
    return np.array([row_of[name] for name in joined.group_names()], dtype=np.int32)


def glyphs(work: Path, characters: list[str]) -> dict[str, np.ndarray]:
    """The characters that the font has, as black and white pictures, eight pixels to a byte."""
    from fontTools.ttLib import TTCollection
    from PIL import Image, ImageDraw, ImageFont

    path = work / "package/usr/share/fonts/opentype/noto" / FONT
    fonts = TTCollection(path, lazy=True).fonts
    number = [face["name"].getDebugName(4) for face in fonts].index(FACE)
    known = fonts[number].getBestCmap()
    font = ImageFont.truetype(path, PIXELS, index=number)
    pictures = []
    for character in characters:
        if ord(character) in known:
            picture = Image.new("L", (PIXELS, PIXELS))
            ImageDraw.Draw(picture).text((0, round(ASCENT * PIXELS)), character, font=font, fill=255, anchor="ls")
            ink = np.asarray(picture, dtype=np.float64).reshape(SIDE, PIXELS // SIDE, SIDE, PIXELS // SIDE) / 255
            pictures.append(np.packbits(ink.mean(axis=(1, 3)) > INK))
    return {"glyph": np.stack(pictures), "has_glyph": np.array([ord(character) in known for character in characters])}


def strokes(work: Path, characters: list[str]) -> dict[str, np.ndarray]:
    """Strokes per character, points per stroke, and for each point the steps from the one before (from 0 for the first)."""
    numbers, lengths, steps = [], [], []
    for character in characters:
        path = work / f"strokes/package/{character}.json"
        drawn = json.loads(path.read_text(encoding="utf-8"))["medians"] if path.exists() else []
        numbers.append(len(drawn))
        for line in drawn:
            points = simplified(np.round((np.array(line) + np.array([0, DESCENT])) / UNITS).astype(int))
            lengths.append(len(points))
            steps.append(np.diff(points, axis=0, prepend=np.zeros((1, 2), dtype=int)))
    return {
        "strokes": np.concatenate(steps).astype(np.int8),
        "stroke_points": np.array(lengths, dtype=np.uint8),
        "stroke_numbers": np.array(numbers, dtype=np.uint8),
    }


def simplified(points: np.ndarray) -> np.ndarray:
    """The first and the last point, and those far from the line between kept ones (Douglas and Peucker)."""
    keep, todo = {0, len(points) - 1}, [(0, len(points) - 1)]
    while todo:
        first, last = todo.pop()
        along, between = points[last] - points[first], points[first + 1 : last] - points[first]
        if len(between):
            length = np.hypot(*along)
            across = np.abs(between[:, 0] * along[1] - between[:, 1] * along[0]) / max(length, 1e-9)
            away = across if length else np.hypot(*between.T)
            far = int(away.argmax())
            if away[far] > CLOSE:
                keep.add(first + 1 + far)
                todo += [(first, first + 1 + far), (first + 1 + far, last)]
    return points[sorted(keep)]


if __name__ == "__main__":
    main()
