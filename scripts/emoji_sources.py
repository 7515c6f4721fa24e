"""The sources of the collection `emoji`: code points, names, keywords, pictures and drawings from their packages."""

from __future__ import annotations

import re
import subprocess
import tarfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from bundling import debian_package, rasterise

DEBIAN = {
    "unicode-data": "15.0.0-1",
    "unicode-cldr-core": "41-0.1",
    "fonts-noto-color-emoji": "2.042-0+deb12u1",
}
TWEMOJI = "@twemoji/svg", "15.0.0"  # npm
SKIN_TONES = range(0x1F3FB, 0x1F400)
SELECTOR, JOINER = 0xFE0F, 0x200D  # "show as a picture", "show as one"
LEFT_OUT = ("Flags", "Component")  # groups


@dataclass(frozen=True)
class Emoji:
    """One line of emoji-test.txt."""

    points: tuple[int, ...]
    name: str
    group: str
    subgroup: str

    @property
    def id(self) -> str:
        """The code points without selectors, as in "1f408-200d-2b1b"."""
        return "-".join(f"{point:x}" for point in self.plain)

    @property
    def plain(self) -> tuple[int, ...]:
        return tuple(point for point in self.points if point != SELECTOR)

    @property
    def text(self) -> str:
        return "".join(map(chr, self.points))


def download(work: Path) -> None:
    """All packages, unpacked into work/package and work/twemoji."""
    for name, version in DEBIAN.items():
        debian_package(name, version, work)
    name, version = TWEMOJI
    subprocess.run(["npm", "pack", f"{name}@{version}"], cwd=work, check=True)
    with tarfile.open(next(work.glob("twemoji-svg-*.tgz"))) as archive:
        archive.extractall(work / "twemoji", filter="data")


def read_emoji(work: Path) -> list[Emoji]:
    """Every fully qualified emoji without a skin tone that is no flag, in the order of the Unicode standard."""
    emoji: list[Emoji] = []
    group = subgroup = ""
    path = work / "package/usr/share/unicode/emoji/emoji-test.txt"
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# group:"):
            group = line.partition(":")[2].strip()
        elif line.startswith("# subgroup:"):
            subgroup = line.partition(":")[2].strip()
        entry = re.match(r"([0-9A-F ]+?)\s*; fully-qualified\s*# \S+ E\S+ (.+)", line)
        if entry is None or group in LEFT_OUT:
            continue
        points = tuple(int(point, 16) for point in entry[1].split())
        if not any(point in SKIN_TONES for point in points):
            emoji.append(Emoji(points, entry[2].strip(), group, subgroup))
    return emoji


def read_annotations(work: Path, language: str) -> tuple[dict[tuple[int, ...], str], dict[tuple[int, ...], list[str]]]:
    """Short names and keywords of CLDR in this language, by code points without selectors."""
    names: dict[tuple[int, ...], str] = {}
    keywords: dict[tuple[int, ...], list[str]] = {}
    for folder in ("annotations", "annotationsDerived"):
        tree = ElementTree.parse(work / f"package/usr/share/unicode/cldr/common/{folder}/{language}.xml")
        for entry in tree.iter("annotation"):
            points = tuple(ord(letter) for letter in entry.get("cp", "") if ord(letter) != SELECTOR)
            if entry.get("type") == "tts":
                names[points] = (entry.text or "").strip()
            else:
                keywords[points] = [word.strip() for word in (entry.text or "").split("|")]
    return names, keywords


def stems(text: str) -> set[str]:
    """The words, in lower case and without common endings, that decide whether a keyword repeats the name."""
    return {re.sub(r"(ing|es|ed|s|d|y|e)$", "", word) or word for word in re.findall(r"\w+", text.lower())}


def other_words(keywords: list[str], name: str) -> list[str]:
    """The keywords that have no word in common with the name."""
    return [keyword for keyword in keywords if not stems(keyword) & stems(name)]


def noto_pictures(work: Path) -> dict[tuple[int, ...], bytes]:
    """The PNG of each emoji in the colour bitmap table of the font, by code points without selectors."""
    from fontTools.ttLib import TTFont

    font = TTFont(work / "package/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
    if "CBDT" not in font:
        raise SystemExit(f"the font has no table CBDT; take version {DEBIAN['fonts-noto-color-emoji']} of its package")
    (strike,) = font["CBDT"].strikeData
    points_of = {glyph: (point,) for point, glyph in font.getBestCmap().items()}
    pictures = {points: strike[glyph].imageData for glyph, points in points_of.items() if glyph in strike}
    for lookup in font["GSUB"].table.LookupList.Lookup:
        for table in lookup.SubTable:
            for first, ligatures in getattr(table, "ligatures", {}).items():
                for ligature in ligatures:
                    parts = [points_of.get(glyph) for glyph in (first, *ligature.Component)]
                    if None in parts or ligature.LigGlyph not in strike:
                        continue
                    points = tuple(p for part in parts if part for p in part if p != SELECTOR)
                    pictures[points] = strike[ligature.LigGlyph].imageData
    return pictures


def twemoji_drawings(work: Path) -> dict[tuple[int, ...], Path]:
    """The SVG of each drawing, by code points without selectors."""
    drawings = {}
    for path in sorted((work / "twemoji/package").glob("*.svg")):
        points = tuple(int(point, 16) for point in path.stem.split("-"))
        drawings[tuple(point for point in points if point != SELECTOR)] = path
    return drawings


def save_picture(target: Path, content: bytes | Path) -> str:
    """The path of a PNG in the work folder, made from PNG bytes or from an SVG file."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(rasterise(content) if isinstance(content, Path) else content)
    return str(target.resolve())


def speak(words: str, voice: str, target: Path) -> str:
    """The path of a recording of espeak-ng saying these words."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["espeak-ng", "-v", voice, "-w", target.name, words], check=True, cwd=target.parent)
    return str(target.resolve())
