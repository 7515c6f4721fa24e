"""What cannot be decoded: one error for all media, with a kind that reports can group by."""

from __future__ import annotations

import os
from typing import Any

from calmrl.errors import InputError


class Unreadable(InputError):
    """A file that cannot be used as the medium it should be. `kind` is short and the same for all files of its sort."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{detail} ({kind})")
        self.kind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[type[Unreadable], tuple[str, str]]:
        return Unreadable, (self.kind, self.detail)  # crosses process borders


def check_file(path: str) -> None:
    """Raise Unreadable unless `path` is a file with something in it."""
    if "\0" in path:
        raise Unreadable("bad path", repr(path))
    if os.path.isdir(path):
        raise Unreadable("directory instead of a file", path)
    if not os.path.exists(path):
        raise Unreadable("file not found", path)
    if os.path.getsize(path) == 0:
        raise Unreadable("empty file", path)


def label_of(source: Any) -> str:
    """How an error names what was to be decoded: a path, or what is in memory."""
    if isinstance(source, (bytes, bytearray)):
        return f"{len(source)} bytes in memory"
    return str(source) if isinstance(source, (str, os.PathLike)) else f"a {type(source).__name__} in memory"
