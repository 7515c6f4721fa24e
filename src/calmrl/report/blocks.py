"""What a page is made of: plain data, without any markup; and the pictures and sounds of its tables. `render` writes it."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from calmrl._support.text import Cell as Cell
from calmrl._support.text import Number as Number
from calmrl._support.text import Picture as Picture
from calmrl._support.text import Sound
from calmrl._support.text import Table as Table
from calmrl.data.media.images import open_image
from calmrl.data.media.problems import Unreadable
from calmrl.data.media.streams import clip, read_audio
from calmrl.report.figures import Panel


@dataclass(frozen=True)
class Figure:
    """Panels with a common caption that says what to see."""

    caption: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Code:
    """Something to copy, under a line that says what it is."""

    label: str
    text: str
    language: str = ""


Block = Table | Figure | Text | Code


@dataclass(frozen=True)
class PageSection:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A title, the answer in sentences, the blocks of the first screen, and the sections below."""

    title: str
    answer: Sequence[str]
    first: Sequence[Block] = field(default_factory=list)
    sections: Sequence[PageSection] = field(default_factory=list)

    def blocks(self) -> list[Block]:
        """All blocks in reading order."""
        return [*self.first, *(block for section in self.sections for block in section.blocks)]


SIDE = 96  # pixels
INSIDE = "data:"  # begins a picture or sound that results.json holds itself
MP3 = "audio/mpeg"


class Media(Protocol):
    """What may have a picture and a sound: paths from the directory of results.json, or data URIs."""

    picture: str | None
    sound: str | None


class Album:
    """Turns sources into pictures and sounds; `unread` names those that are not there or cannot be read."""

    def __init__(self) -> None:
        self.pictures, self.sounds, self.unread = count(1), count(1), list[str]()

    def cell(self, folder: Path, media: Media, text: str, about: str) -> Cell:
        """A cell with the text and what there is to see and hear; paths begin at `folder`."""
        return Cell(text, self._picture(folder, media.picture, about), self._sound(folder, media.sound, about))

    def _picture(self, folder: Path, source: str | None, about: str) -> Picture | None:
        if source is None:
            return None
        try:
            small = open_image(_content(folder, source))
        except Unreadable:
            self._note(source)
            return None
        small.thumbnail((SIDE, SIDE))
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=80)
        return Picture(f"picture-{next(self.pictures)}.jpg", buffer.getvalue(), f"picture: {about}")

    def _sound(self, folder: Path, source: str | None, about: str) -> Sound | None:
        if source is None:
            return None
        try:
            content = _content(folder, source)
            if isinstance(content, bytes) and source.startswith(f"{INSIDE}{MP3};"):
                read_audio(content)  # a clip already, if it is a sound at all
                mp3 = content
            else:
                mp3 = clip(content)
        except Unreadable:
            self._note(source)
            return None
        return Sound(f"sound-{next(self.sounds)}.mp3", mp3, MP3, f"sound: {about}")

    def _note(self, source: str) -> None:
        self.unread.append("one inside results.json" if source.startswith(INSIDE) else source)


def _content(folder: Path, source: str) -> bytes | Path:
    if not source.startswith(INSIDE):
        return folder / source
    try:
        return base64.b64decode(source.partition(",")[2])
    except binascii.Error as error:
        raise Unreadable("not base64", f"one inside results.json: {error}") from error
