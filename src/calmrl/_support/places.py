"""Where things lie, judged by names alone: addresses, indexes, sources, and the index of a source whose place nobody named.

Nothing is opened here, and nothing imported that computes: a wrong path is refused at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from calmrl.errors import InputError

ITEMS, PARTS = "items", "parts"  # the tables of an index
LONGEST = 60  # letters of the name of a source in that of its index


def is_remote(path: Any) -> bool:
    """Whether a path is an address such as s3://bucket/index."""
    return isinstance(path, str) and "://" in path


def holds_index(path: Any) -> bool:
    """Whether a folder has a table of an index."""
    return any((Path(path) / f"{table}.lance").is_dir() for table in (ITEMS, PARTS))


def check_index(path: str | Path) -> None:
    """Refuse a path at which there is no folder, and so no index."""
    if not is_remote(path) and not Path(path).is_dir():
        part = Path(f"{path}.part")
        hint = f"; {part.name} beside it is unfinished: run calmrl index again to finish it" if part.exists() else ""
        raise InputError(f"no index at {path}; make one with calmrl index SOURCE --out {path}{hint}")


def check_source(source: str | Path, datasets: Collection[str]) -> None:
    """Refuse what is neither a path that exists, nor an address, nor the name of a bundled data set."""
    if not is_remote(source) and str(source) not in datasets and not Path(source).exists():
        raise InputError(
            f"{source} is neither a file or folder nor a bundled data set ({', '.join(datasets)}); check the name"
        )


def cache_folder() -> Path:
    """Where calmrl keeps what it can make again: `calmrl` in XDG_CACHE_HOME, or in what the system has for that."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given) / "calmrl"
    try:
        home = Path.home()
    except RuntimeError:
        raise InputError("there is no home folder to keep an index in; say where with `index`") from None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "calmrl"
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "calmrl"


def index_of(source: str | Path) -> Path:
    """Where the index of a source is kept if nobody says where: in the cache, under its name and a digest of its full path."""
    whole = str(Path(source).resolve()) if Path(source).exists() else str(source)
    name = re.sub(r"[^\w.-]+", "-", Path(whole).name)[:LONGEST].strip("-.") or "files"
    return (
        cache_folder()
        / "indexes"
        / f"{name}-{hashlib.sha256(whole.encode('utf-8', 'surrogateescape')).hexdigest()[:10]}"
    )
