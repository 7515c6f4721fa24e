"""One method, one style: colour, marker, line and hatch follow from the name alone, so they are the same in every figure.

Colours are those of Okabe and Ito (told apart by colour-blind readers) without the yellow, which vanishes on paper; the
marker and the hatch say the same again for grey printing. Variants of a method ("gram+latent", "gram staged",
"ideal gram") keep its colour and marker and change fill, line and hatch.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Literal

from calmrl.training.methods import METHODS

OURS = "▸ "  # stands before the names of this project's methods, in tables and drawings
INK, PAPER, SOFT, FAINT = "#1b1f24", "#fffffe", "#7d8590", "#b8bec6"  # INK and PAPER follow the page, see svg.py
BLUE, VERMILLION, ORANGE, SKY = "#0072b2", "#d55e00", "#e69f00", "#56b4e9"
GREEN, PURPLE, GREY, BROWN = "#009e73", "#cc79a7", "#7f7f7f", "#8c6d31"
COLOURS = (ORANGE, SKY, GREEN, PURPLE, GREY, BROWN)  # for names not listed below; blue and vermillion are ours
MARKERS = ("^", "v", "s", ">", "D", "<", "p", "h", "d", "8")

KNOWN = {
    "aligner": (BLUE, "o"),
    "calmrl": (VERMILLION, "o"),
    "closed-form": (VERMILLION, "P"),
    "gaussian": (BLUE, "p"),
    "contrastive": (ORANGE, "^"),
    "vast": (SKY, "v"),
    "gram": (GREEN, "s"),
    "triangle": (PURPLE, ">"),
    "pmrl": (GREY, "D"),
    "cca": (BROWN, "^"),
    "mcca": (BROWN, "v"),
    "gcca": (BROWN, "s"),
    "asif": (SKY, ">"),
    "procrustes": (GREEN, "d"),
    "ideal": (INK, "*"),
    "mean": (FAINT, "_"),
    "knn": (ORANGE, "d"),
    "ridge": (GREEN, "<"),
    "mvae": (SKY, "h"),
    "mopoe": (PURPLE, "8"),
    "smil": (BROWN, "X"),
    "gfa": (GREY, "H"),
    "knowledge_bridger": (BROWN, "D"),
}
Variant = Literal["plain", "latent", "staged", "ideal", "printed"]
Fill = Literal["full", "none", "left", "bottom"]
Line = Literal["-", "--", "-.", ":"] | tuple[float, tuple[float, ...]]
VARIANTS: dict[Variant, tuple[Fill, Line, str]] = {
    "plain": ("full", "-", ""),
    "latent": ("none", "--", "////"),
    "staged": ("left", ":", "...."),
    "printed": ("bottom", "-.", "xxxx"),
    "ideal": ("none", (0, (6, 1.5, 1, 1.5, 1, 1.5)), "----"),
}
MARKS: dict[str, Variant] = dict(ideal="ideal", staged="staged", latent="latent", printed="printed", mixture="latent")
WORD = re.compile(rf"[\s+(:-]*\b({'|'.join(MARKS)})\b[\s):-]*", re.IGNORECASE)


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    colour: str
    marker: str
    fill: Fill
    line: Line
    hatch: str
    strong: bool


def base_method(method: str) -> tuple[str, Variant]:
    """The method a name is a variant of, and which variant: "GRAM + latent" -> ("gram", "latent")."""
    words = {word.lower() for word in WORD.findall(method)}
    base = WORD.sub(" ", method).strip().lower()
    for word, variant in MARKS.items():
        if word in words:
            return base or word, variant
    return base, "plain"


def is_ours(method: str) -> bool:
    """Whether a name is one of this project's methods; `meta["methods"]` may say otherwise."""
    base, variant = base_method(method)
    name = base.partition(":")[0]
    return variant != "ideal" and (name == "gaussian" or (name in METHODS and METHODS[name].ours))


def style_of(method: str) -> Style:
    """The style of a method. A name that is not known gets one from its letters, always the same."""
    base, variant = base_method(method)
    code = zlib.crc32(base.encode())
    chosen = (COLOURS[code % len(COLOURS)], MARKERS[code // len(COLOURS) % len(MARKERS)])
    colour, marker = KNOWN.get(base, chosen)
    fill, line, hatch = VARIANTS[variant]
    return Style(colour, marker, fill, line, hatch, is_ours(method))
