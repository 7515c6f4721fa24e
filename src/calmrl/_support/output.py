"""Output that appears whole or not at all: write beside the target, then rename.

Nothing here overwrites what is there unless `force` is given, and with `force` a directory is replaced only if calmrl
wrote it: every result directory of a command holds a `config.yaml` whose first line begins with `WRITTEN_BY`. What is
replaced stays in place until the new output is whole.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calmrl._support.scratch import put_in_place, scratch
from calmrl._support.writable import check_writable, writing
from calmrl.errors import InputError

WRITTEN_BY = "# written by calmrl"
FORCE = ", or pass --force to replace it"  # ends the error about a target that exists, where a command has --force
FILE_ENDINGS = {".parquet", ".npz", ".npy", ".safetensors", ".csv", ".tsv", ".json", ".jsonl", ".yaml", ".yml", ".html",
                ".md", ".txt", ".tar", ".zip"}  # fmt: skip


@contextmanager
def new_file(target: str | Path, *, force: bool = False, advice: str = FORCE) -> Iterator[Path]:
    """Yield a path beside `target` to write to; it takes the target's name when the block ends well."""
    check_free_file(target, force=force, advice=advice)
    place = Path(os.path.realpath(target))
    with writing(target), scratch(place) as folder:
        (folder / "new").mkdir()
        draft = folder / "new" / place.name
        yield draft
        os.replace(draft, place)


@contextmanager
def new_directory(target: str | Path, *, force: bool = False, advice: str = FORCE) -> Iterator[Path]:
    """Yield an empty directory beside `target` to fill; it takes the target's name when the block ends well."""
    check_free(target, force=force, advice=advice)
    with replaced_directory(target) as draft:
        yield draft
        check_free(target, force=force, advice=advice)


@contextmanager
def replaced_directory(target: str | Path) -> Iterator[Path]:
    """As `new_directory`, for a target that was found to be free, or that may be replaced whatever it is."""
    place = Path(os.path.realpath(target))
    with writing(target), scratch(place) as folder:
        draft = folder / "new"
        draft.mkdir()
        yield draft
        put_in_place(draft, place, folder)


def check_free(target: str | Path, *, force: bool = False, advice: str = FORCE) -> None:
    """Refuse a directory that cannot be created, or not without losing something; an empty one is free."""
    target = Path(target)
    check_directory(target)
    if not target.exists() or not any(target.iterdir()):
        return
    if not force:
        raise InputError(f"{target} exists and is not empty; choose another name{advice}")
    config = target / "config.yaml"
    if not config.is_file() or not config.read_text(encoding="utf-8", errors="replace").startswith(WRITTEN_BY):
        raise InputError(f"{target} was not written by calmrl, so it is not replaced; choose another name")


def check_directory(target: str | Path) -> None:
    """Refuse a place where no directory can be, or be made; whatever a directory there holds."""
    target = Path(target)
    check_writable(target)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; give the name of a directory that does not exist yet")
    if not target.exists() and target.suffix.lower() in FILE_ENDINGS:
        raise InputError(
            f"{target} ends in {target.suffix}, as a file does, but a directory is written; choose a name without it"
        )


def check_free_file(target: str | Path, *, force: bool = False, advice: str = FORCE) -> None:
    """Refuse a file that cannot be written, or not without losing something."""
    target = Path(target)
    check_writable(target)
    if target.is_dir():
        raise InputError(f"{target} is a directory; give the name of a file")
    if target.exists() and not force:
        raise InputError(f"{target} exists; choose another name{advice}")
