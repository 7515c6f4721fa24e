"""A small picture of an item, from its image or from a frame of its film."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from calmrl.data.media.images import open_image
from calmrl.data.media.streams import read_frames
from calmrl.data.media.suffixes import VIDEO
from calmrl.data.media.unreadable import Unreadable
from calmrl.errors import need

SIDE = 192  # pixels, of the longer side
QUALITY = 80


def thumbnail(path: str | Path) -> bytes | None:
    """A picture or film as a small WebP; None if it cannot be read."""
    try:
        if str(path).lower().endswith(VIDEO):
            frames, _ = read_frames(path, 1)
            picture = need("PIL.Image", "media", "reading video frames").fromarray(frames[0])
        else:
            picture = open_image(path)
    except Unreadable:
        return None
    return small(picture)


def small(picture: Any) -> bytes:
    """An image of Pillow as WebP of at most SIDE pixels."""
    copy = picture.convert("RGB")
    copy.thumbnail((SIDE, SIDE))
    out = io.BytesIO()
    copy.save(out, "WEBP", quality=QUALITY)
    return out.getvalue()
