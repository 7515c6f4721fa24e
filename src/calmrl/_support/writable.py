"""Whether a place can be written to, asked before any work; and what is said when writing fails after all."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from calmrl._support.parsing import reason_of
from calmrl._support.scratch import remove_leftovers
from calmrl.errors import InputError

PROBE = ".calmrl-probe-"
SPARE = 24  # bytes that names of unfinished output are longer than the name of the output
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_WORDS = ("no space left on device", "disk quota exceeded", "file too large")  # where a library hides the number


def check_writable(target: str | Path) -> None:
    """Refuse a place that cannot be written to: below a file, behind a broken link, with a name that is too long,
    without permission, on a full or read-only disk. Nothing stays behind, nor does what killed processes left there: a
    target that was moved away is back before anyone asks whether it exists."""
    path = Path(os.path.abspath(target))
    if os.path.islink(path) and not os.path.exists(path):
        raise InputError(f"{target} is a link that leads nowhere; remove it, or choose another name")
    folder, missing = path.parent, [path.name]
    while not os.path.lexists(folder):
        missing.append(folder.name)
        folder = folder.parent
    if not os.path.isdir(folder):
        what = "a link that leads nowhere" if os.path.islink(folder) else "a file"
        raise InputError(f"{folder} is {what}, so {target} cannot be written below it; choose another place")
    _check_names(path, folder, missing)
    for place in {folder, path} if os.path.isdir(path) else {folder}:
        try:
            _probe(place)
            remove_leftovers(place)
        except OSError as error:
            raise InputError(_sentence(target, error)) from error


def _probe(place: Path) -> None:
    """Make a directory and remove it, together with those of processes that were killed between the two."""
    tempfile.mkdtemp(prefix=PROBE, dir=place)
    with os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(PROBE)]
    for name in names:
        with suppress(OSError):  # another process, living or of another user, removes its own
            os.rmdir(os.path.join(place, name))


@contextmanager
def writing(target: str | Path) -> Iterator[None]:
    """A full disk, whoever noticed it, becomes a sentence that names what was to be written."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not is_full(error):
            raise
        raise InputError(
            f"{target} could not be written: {_reason(error)}; make room, then run the same command again"
        ) from error


def is_full(error: Exception) -> bool:
    """Whether an error says that no space is left."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    return any(words in str(error).lower() for words in FULL_WORDS)


def unwritable(error: OSError) -> str | None:
    """A sentence for an error about a file that cannot be used; None for any other."""
    if error.filename is None or error.errno is None:
        return None
    return _sentence(os.fsdecode(error.filename), error)


def _check_names(path: Path, folder: Path, missing: list[str]) -> None:
    longest, whole = os.pathconf(folder, "PC_NAME_MAX"), os.pathconf(folder, "PC_PATH_MAX")
    for name in missing:
        size = len(os.fsencode(name))
        if size > longest - SPARE:
            raise InputError(
                f"{name[:40]}... is a name of {size} bytes, too long for an output; choose one of at most {longest - SPARE}"
            )
    if len(os.fsencode(path)) > whole - 2 * SPARE:
        raise InputError(
            f"{str(path)[:40]}... is a path of {len(os.fsencode(path))} bytes, too long; choose another place"
        )


def _sentence(target: str | Path, error: OSError) -> str:
    advice = "make room, then run the same command again" if error.errno in FULL else "choose another place"
    return f"{target} cannot be written or read: {_reason(error)}; {advice}"


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else reason_of(error)
    return text[:1].lower() + text[1:]
