"""A small collection with holes, drawn and sounded by code: shapes in colours, each with a tone of its own.

`write_shapes` writes it as files with a manifest; `ShapeIndex` searches it with the interface of `calmrl.search.Index` but
without encoders, by shared words, average colour and pitch.
"""

from __future__ import annotations

import io
import json
import re
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from calmrl.errors import InputError
from calmrl.search.hits import Answer, Contribution

COLOURS = {
    "red": (196, 48, 43), "orange": (224, 128, 32), "yellow": (233, 196, 52), "green": (62, 142, 78),
    "blue": (48, 98, 176), "violet": (120, 72, 152),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "ring", "cross", "diamond", "bar", "star")
RATE = 16_000
IMAGE, SOUND = "image", "sound"


def draw(colour: str, shape: str, side: int = 160):
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (side, side), "white")
    pen = ImageDraw.Draw(picture)
    fill, a, b, m = COLOURS[colour], side * 0.15, side * 0.85, side / 2
    if shape == "circle":
        pen.ellipse((a, a, b, b), fill)
    elif shape == "square":
        pen.rectangle((a, a, b, b), fill)
    elif shape == "triangle":
        pen.polygon([(m, a), (b, b), (a, b)], fill)
    elif shape == "ring":
        pen.ellipse((a, a, b, b), outline=fill, width=side // 7)
    elif shape == "cross":
        pen.rectangle((m - a / 2, a, m + a / 2, b), fill)
        pen.rectangle((a, m - a / 2, b, m + a / 2), fill)
    elif shape == "diamond":
        pen.polygon([(m, a), (b, m), (m, b), (a, m)], fill)
    elif shape == "bar":
        pen.rectangle((a, m - a / 2, b, m + a / 2), fill)
    else:
        corners = [
            (r * np.sin(i * np.pi / 5), -r * np.cos(i * np.pi / 5))
            for i in range(10)
            for r in [(b - a) / (4 if i % 2 else 2)]
        ]
        pen.polygon([(m + x, m + y) for x, y in corners], fill)
    return picture


def png(colour: str, shape: str, side: int = 160) -> bytes:
    out = io.BytesIO()
    draw(colour, shape, side).save(out, "PNG")
    return out.getvalue()


def pitch(colour: str, shape: str) -> float:
    return 220.0 * 2 ** ((8 * list(COLOURS).index(colour) + SHAPES.index(shape)) / 24)


def tone(hertz: float, seconds: float = 1.0) -> bytes:
    """A WAV file that fades out."""
    t = np.arange(int(seconds * RATE)) / RATE
    samples = (0.5 * np.sin(2 * np.pi * hertz * t) * np.exp(-3 * t) * 32767).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    return out.getvalue()


def write_shapes(folder: Path) -> Path:
    """48 items; of every five one has no image, one no sound and one no text. Returns the manifest."""
    folder.mkdir(parents=True)
    rows = []
    for number, (colour, shape) in enumerate((c, s) for c in COLOURS for s in SHAPES):
        row = {"id": f"{colour}/{shape}", "labels": colour}
        if number % 5 != 1:
            (folder / f"{number}.png").write_bytes(png(colour, shape))
            row[IMAGE] = f"{number}.png"
        if number % 5 != 2:
            (folder / f"{number}.wav").write_bytes(tone(pitch(colour, shape)))
            row[SOUND] = f"{number}.wav"
        if number % 5 != 3:
            row["text"] = f"A {colour} {shape} on white"
        rows.append(row)
    manifest = folder / "items.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return manifest


@dataclass
class ShapeItem:
    id: str
    certainty: float
    modalities: tuple[str, ...]
    text: str | None
    label: str | None
    paths: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    root: str = ""


@dataclass
class ShapeHit(ShapeItem):
    found: ClassVar[tuple[str, ...]] = ("vectors",)
    weak: ClassVar[bool] = False
    close: ClassVar[bool] = True
    segment: ClassVar[tuple[float, float] | None] = None
    why: ClassVar[tuple[Contribution, ...]] = (Contribution("text", "text", 0.25),)
    similarity: float = 0.0


class ShapeIndex:
    expected: ClassVar[dict] = {
        "text->image": {"R@1": 61.8, "R@10": 93.1, "low": 52.0, "high": 71.0, "n": 38},
        "image->sound": {"R@1": 21.4, "R@10": 60.2, "low": 12.0, "high": 31.0, "n": 38},
    }

    def __init__(self, manifest: Path) -> None:
        self.folder = self.path = manifest.parent
        self.rows = {row["id"]: self._item(row) for row in map(json.loads, manifest.read_text().splitlines())}

    def _item(self, row: dict) -> ShapeItem:
        names = tuple(name for name in (IMAGE, "text", SOUND) if name in row)
        paths = {name: row[name] for name in (IMAGE, SOUND) if name in row}
        columns = {"shape": row["id"].partition("/")[2]}
        return ShapeItem(row["id"], 0.4 + 0.2 * len(names), names, row.get("text"), row.get("labels"), paths, columns)

    def __len__(self) -> int:
        return len(self.rows)

    def modalities(self) -> dict:
        kinds = {IMAGE: "image", "text": "text", SOUND: "audio"}
        counts = {name: sum(name in row.modalities for row in self.rows.values()) for name in kinds}
        return {
            name: {"kind": kind, "n": counts[name], "searchable": True, "encoder": "none"}
            for name, kind in kinds.items()
        }

    def labels(self) -> list[str]:
        return sorted({row.label for row in self.rows.values() if row.label})

    def about(self) -> dict:
        return {"source": "shapes"}

    def item(self, id: str) -> ShapeItem:
        if id not in self.rows:
            raise InputError(f"no item {id!r} in this collection")
        return self.rows[id]

    def file(self, id: str, modality: str) -> Path:
        paths = self.item(id).paths
        if modality not in paths:
            raise InputError(f"item {id!r} has no file of {modality!r}")
        return self.folder / paths[modality]

    def thumbnail(self, id: str) -> bytes | None:
        return self.file(id, IMAGE).read_bytes() if IMAGE in self.item(id).paths else None

    def items(self, offset: int = 0, limit: int = 60, having=None, lacking=None, where=None) -> list[ShapeItem]:
        return self._kept(having, lacking, where)[offset : offset + limit]

    def search(
        self,
        text=None,
        image=None,
        sound=None,
        *,
        like=None,
        k=10,
        having=None,
        lacking=None,
        where=None,
        hubs=False,
        why=False,
    ):
        kept = [row for row in self._kept(having, lacking, where) if row.id != like]
        total = np.zeros(len(kept))
        for given, measure in (
            (text, self._by_words),
            (image, self._by_picture),
            (sound, self._by_sound),
            (like, self._by_item),
        ):
            if given is not None:
                total += measure(given, kept)
        order = np.argsort(-total, kind="stable")[:k]
        return Answer(ShapeHit(**vars(kept[i]), similarity=float(np.tanh(total[i]))) for i in order)

    def _kept(self, having, lacking, where) -> list[ShapeItem]:
        for name in [*(having or ()), *(lacking or ())]:
            if name not in (IMAGE, "text", SOUND):
                raise InputError(f"unknown modality {name!r}; known: image, text, sound")
        label = None
        if where is not None:
            match = re.fullmatch(r"label = '((?:[^']|'')*)'", where)
            if not match:
                raise InputError(f"where {where!r} is no condition; for instance label = 'red'")
            label = match[1].replace("''", "'")
        rows = [row for row in self.rows.values() if label is None or row.label == label]
        rows = [row for row in rows if set(having or ()) <= set(row.modalities)]
        return [row for row in rows if not set(lacking or ()) & set(row.modalities)]

    def _by_words(self, terms: list[tuple[float, str]], rows) -> np.ndarray:
        total = np.zeros(len(rows))
        for weight, text in terms:
            wanted = set(text.lower().split())
            total += [weight * len(wanted & set(row.id.split("/"))) / max(1, len(wanted)) for row in rows]
        return total

    def _by_picture(self, content: bytes, rows) -> list[float]:
        from PIL import Image

        try:
            pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGB").resize((64, 64)), float)
        except OSError as error:
            raise InputError(f"the image cannot be read ({error})") from error
        drawn = [np.asarray(draw(*row.id.split("/"), side=64), float) for row in rows]
        return [1 - np.abs(pixels - other).mean() / 64 for other in drawn]

    def _by_sound(self, content: bytes, rows) -> list[float]:
        with wave.open(io.BytesIO(content)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        top = np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples)
        return [1 - abs(np.log2(top / pitch(*row.id.split("/")))) for row in rows]

    def _by_item(self, id: str, rows) -> np.ndarray:
        return self._by_words([(1.0, " ".join(self.item(id).id.split("/")))], rows)
