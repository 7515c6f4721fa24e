"""Small pictures and short sounds of a page, numbered, from data URIs or files."""

from __future__ import annotations

import base64
import binascii
import io
from itertools import count
from pathlib import Path
from typing import Protocol

from calmrl.data.media.clip import clip
from calmrl.data.media.images import open_image
from calmrl.data.media.streams import read_audio
from calmrl.data.media.unreadable import Unreadable
from calmrl.report.blocks import Cell, Picture, Sound

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
