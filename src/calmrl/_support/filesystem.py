"""What differs between file systems: locks, replacing at one moment, reaching the disk, and how much space is left.

Nothing here is needed at import that a system may lack. Locks are `flock`, or `msvcrt.locking` on Windows; both end with the
process that holds them. Two directories swap their names by `renameat2` on Linux and `renamex_np` on macOS; elsewhere the old
one is moved away first, and whoever writes there next puts it back if the process was killed in between.
"""

import ctypes
import errno
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from calmrl.errors import InputError

fcntl: Any = None
msvcrt: Any = None
try:
    import fcntl
except ImportError:
    import msvcrt

MARK = ".calmrl-"
NAME = re.compile(r"\..*\.calmrl-[a-z0-9_]{8}")  # of scratch directories
LOCK, OLD = "lock", "old"  # in a scratch directory: its lock; what was moved away for a draft
LONGEST = 80  # characters of a target's name that are used in that of its scratch directory
TAKEN = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}  # what a lock that is held answers
IN_THE_WAY = {errno.EEXIST, errno.ENOTEMPTY}
NOT_SUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}
AT_FDCWD = -100  # of Linux
SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS


# ---- locks


@contextmanager
def locked(target: Path, named: str | Path | None = None) -> Iterator[None]:
    """For one process at a time; others are refused with a sentence that says what is being written.

    The lock is a hidden file beside the target. It is removed by whoever holds it, and one that was removed before it was
    locked guards nothing: `_take` then begins again.
    """
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    file = target.absolute().with_name(f".{target.name}{MARK}{LOCK}")
    handle = _take(file)
    if handle is None:
        raise InputError(f"another run is writing {named or target}; wait until it has ended")
    try:
        yield
    finally:
        _release(handle, partial(file.unlink, missing_ok=True))


def _take(file: Path) -> int | None:
    """An open handle that holds the lock of a file, which is made if need be; None if another process holds it."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            held = _lock(handle, file)
            if held and _is_at(handle, file):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if not held:
            return None


def _lock(handle: int, file: Path) -> bool:
    """Whether the lock could be taken; a file system that has none is an error."""
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno in TAKEN:
            return False
        raise InputError(
            f"{file.parent} is on a file system that refuses locks ({error.strerror}), so two runs could destroy each "
            "other's output; write to another disk and copy the result there, or mount this one with locks"
        ) from error
    return True


def _is_at(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


def _release(handle: int, remove: Callable[[], Any]) -> None:
    """Remove what a lock guards and give it up, in the order that the system allows."""
    if fcntl is not None:
        try:
            remove()
        finally:
            os.close(handle)
    else:
        os.close(handle)
        with suppress(PermissionError):  # Windows removes no open file: the next one has it already, and removes it
            remove()


# ---- drafts, and putting them in place


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A locked directory for drafts on the target's file system, removed in any case.

    One that nobody has locked was left by a process that was killed: whoever writes beside it next removes it.
    """
    parent = target.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent)
    folder, handle = _make(parent, target.name)
    try:
        yield folder
    finally:
        _release(handle, partial(_discard, folder))


def remove_leftovers(parent: Path) -> None:
    """Remove the scratch directories in `parent` whose process is gone, after putting back what they still hold."""
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    for folder in [parent / name for name in names]:
        try:
            handle = _take(folder / LOCK)
        except OSError:  # it is gone by now, or of another user
            continue
        if handle is not None:
            _release(handle, partial(_discard, folder))


def _make(parent: Path, name: str) -> tuple[Path, int]:
    """(a new scratch directory, its lock)"""
    if len(name) > LONGEST:
        name = f"{name[: LONGEST // 4]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    while True:  # another process may take it for a leftover, in the moment before it is locked
        folder = Path(tempfile.mkdtemp(prefix=f".{name}{MARK}", dir=parent))
        with suppress(FileNotFoundError):
            handle = _take(folder / LOCK)
            if handle is not None:
                return folder, handle


def _discard(folder: Path) -> None:
    """Remove a scratch directory, after putting back a target that was moved away for a draft that did not take its place."""
    old = folder / OLD
    for kept in old.iterdir() if old.is_dir() else ():
        if not os.path.lexists(folder.parent / kept.name):
            _rename(kept, folder.parent / kept.name)
    shutil.rmtree(folder, ignore_errors=True)


def put_in_place(draft: Path, target: Path) -> None:
    """Give a directory the name of another on the same file system, which is there until that moment.

    The draft lies in a folder that is removed afterwards: where the two are exchanged, what was replaced is there. Where the
    system cannot exchange them, the target is absent between two renamings.
    """
    while not _rename(draft, target):
        with suppress(FileNotFoundError):  # another process has moved the target away: its name is free again
            if exchange(draft, target):
                return
            with scratch(target) as folder:
                (folder / OLD).mkdir()
                os.rename(target, folder / OLD / target.name)
                if _rename(draft, target):
                    return


def _rename(source: Path, target: Path) -> bool:
    """Give a directory a name that is free or that of an empty one; False if it is neither."""
    with suppress(OSError):  # not an empty one; Windows does not rename onto those
        target.rmdir()
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in IN_THE_WAY:
            return False
        raise
    return True


def exchange(one: Path, other: Path) -> bool:
    """Let two paths swap their names at one moment; False where the system cannot."""
    name = {"linux": "renameat2", "darwin": "renamex_np"}.get(sys.platform)
    swap = getattr(ctypes.CDLL(None, use_errno=True), name, None) if name else None
    if swap is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    given = (AT_FDCWD, paths[0], AT_FDCWD, paths[1], SWAP) if name == "renameat2" else (*paths, SWAP)
    if swap(*given) == 0:
        return True
    number = ctypes.get_errno()
    if number in NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))


def read_steadily(folder: Path, read: Callable[[], Any]) -> Any:
    """What `read` makes of the files in a folder; an error counts only if the folder was not replaced meanwhile."""
    while True:
        before = _identity(folder)
        try:
            return read()
        except (InputError, OSError):
            if _identity(folder) == before:
                raise


def _identity(folder: Path) -> tuple[int, ...] | None:
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


# ---- the disk


def flush(folder: Path, inside: bool = True) -> None:
    """Ask the system to put a folder, and what is `inside`, on disk; a folder itself only where it can be opened."""
    for path in [*(folder.rglob("*") if inside else ()), folder]:
        if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
            continue
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def check_space(folder: Path, size: int, target: object) -> None:
    """Refuse an output of so many bytes for which a folder's disk has no space."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise InputError(
            f"{target} needs {readable_size(size)} but {readable_size(free)} are free; make room, then run the same command "
            "again"
        )


def readable_size(size: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> [readable_size(size) for size in (12, 999, 3968, 999_960, 2.5e9)]
    ['12 bytes', '999 bytes', '4.0 kB', '1.0 MB', '2.5 GB']
    """
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if round(size, 1) < 1000:
            return f"{size:.1f} {unit}"
    return f"{size:.0f} TB"
