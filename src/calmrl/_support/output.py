"""Output that appears whole or not at all: write beside the target, then rename.

Nothing here overwrites what is there unless `force` is given, and with `force` a directory is replaced only if calmrl
wrote it: every result directory of a command holds a `config.yaml` whose first line begins with `WRITTEN_BY`.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calmrl.errors import InputError

WRITTEN_BY = "# written by calmrl"
FORCE = ", or pass --force to replace it"  # ends the error about a target that exists, where a command has --force


@contextmanager
def new_file(target: str | Path, *, force: bool = False, advice: str = FORCE) -> Iterator[Path]:
    """Yield a path beside `target` to write to; it takes the target's name when the block ends well."""
    target = Path(target)
    if target.is_dir():
        raise InputError(f"{target} is a directory; give the name of a file")
    if target.exists() and not force:
        raise InputError(f"{target} exists; choose another name{advice}")
    with _scratch(target) as scratch:
        draft = scratch / target.name
        yield draft
        os.replace(draft, target)


@contextmanager
def new_directory(target: str | Path, *, force: bool = False, advice: str = FORCE) -> Iterator[Path]:
    """Yield an empty directory beside `target` to fill; it takes the target's name when the block ends well."""
    target = Path(target)
    check_free(target, force=force, advice=advice)
    with _scratch(target) as scratch:
        draft = scratch / "new"
        draft.mkdir()
        yield draft
        check_free(target, force=force, advice=advice)
        if target.exists():
            os.replace(target, scratch / "old")
        os.replace(draft, target)


def check_free(target: str | Path, *, force: bool = False, advice: str = FORCE) -> None:
    """Refuse a directory that cannot be created without losing something; an empty one is free."""
    target = Path(target)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; give the name of a directory that does not exist yet")
    if not target.exists() or not any(target.iterdir()):
        return
    if not force:
        raise InputError(f"{target} exists and is not empty; choose another name{advice}")
    config = target / "config.yaml"
    if not config.is_file() or not config.read_text(encoding="utf-8", errors="replace").startswith(WRITTEN_BY):
        raise InputError(f"{target} was not written by calmrl, so --force does not delete it; choose another name")


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A temporary directory on the target's file system, removed in any case."""
    parent = target.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
