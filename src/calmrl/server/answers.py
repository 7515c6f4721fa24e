"""Items, hits and problems as JSON."""

import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

# What a browser may show by itself. Everything else is sent as bytes to be saved, whatever its name says.
TYPES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
    ".bmp": "image/bmp", ".avif": "image/avif", ".svg": "image/svg+xml",
    ".wav": "audio/wav", ".mp3": "audio/mpeg", ".flac": "audio/flac", ".ogg": "audio/ogg", ".oga": "audio/ogg",
    ".opus": "audio/ogg", ".m4a": "audio/mp4", ".aac": "audio/aac", ".weba": "audio/webm",
    ".mp4": "video/mp4", ".m4v": "video/mp4", ".webm": "video/webm", ".ogv": "video/ogg", ".mov": "video/quicktime",
    ".txt": "text/plain; charset=utf-8",
}  # fmt: skip
UNKNOWN = "application/octet-stream"


class Json(Response):
    """JSON without NaN and infinity, which browsers refuse."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Compact UTF-8."""
        text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"), default=_plain)
        return text.encode("utf-8", "backslashreplace")


def problem(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Json:
    """An error that a person can read."""
    return Json({"error": sentence}, status_code=status, headers=dict(headers or {}))


def item_json(item: Any, modalities: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """An item or a hit: what was observed of it, what is missing, and where its files are.

    Hits have `similarity`; items have `columns`, what else their source says about them.
    """
    address = f"/api/items/{quote(item.id, safe='')}"
    files = {
        name: {"url": f"{address}/files/{quote(name, safe='')}", "type": media_type(path)}
        for name, path in (item.paths or {}).items()
    }
    pictured = any(modalities[name]["kind"] == "image" for name in item.modalities if name in modalities)
    answer = {
        "id": item.id,
        "text": item.text,
        "label": item.label,
        "modalities": list(item.modalities),
        "missing": [name for name in modalities if name not in item.modalities],
        "certainty": item.certainty,
        "url": address,
        "thumbnail": f"{address}/thumbnail" if pictured else None,
        "files": files,
    }
    if hasattr(item, "similarity"):
        return {**answer, "similarity": item.similarity}
    return {**answer, "columns": {name: value for name, value in item.columns.items() if value is not None}}


def media_type(path: str | PurePath) -> str:
    """`sounds/a.WAV` -> `audio/wav`"""
    return TYPES.get(PurePath(path).suffix.lower(), UNKNOWN)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value


def _plain(value: Any) -> Any:
    """NumPy numbers as Python's, anything else as text."""
    return _finite(value.item()) if hasattr(value, "item") else str(value)
