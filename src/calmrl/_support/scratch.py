"""Directories for unfinished output, beside where it will be; and putting it in place at one moment.

A scratch directory is locked by the process that uses it. One that nobody has locked was left by a process that was
killed: whoever writes beside it next removes it, after putting back what it may still hold.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = ".calmrl-"
NAME = re.compile(r"\..*\.calmrl-[a-z0-9_]{8}")
LONGEST = 80  # characters of a target's name that are used in that of its scratch directory
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux
NOT_SUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


@contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """A locked temporary directory on the target's file system, removed in any case."""
    parent = target.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(parent)
    folder, lock = _make(parent, target.name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def put_in_place(draft: Path, target: Path, folder: Path) -> None:
    """Give a draft in the scratch directory `folder` the name of the target; what had it is there until that moment.

    Where the system cannot exchange two directories at once, the old one is first moved to `folder`; a process that is
    killed then leaves it there, and `remove_leftovers` puts it back.
    """
    if not target.is_dir() or not any(target.iterdir()):
        os.replace(draft, target)
    elif not exchange(draft, target):
        old = folder / "old"
        old.mkdir()
        os.replace(target, old / target.name)
        os.replace(draft, target)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths swap their names at one moment; False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in NOT_SUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))


def remove_leftovers(parent: Path) -> None:
    """Remove the scratch directories in `parent` whose process is gone, after putting back what they still hold."""
    with os.scandir(parent) as entries:
        names = [entry.name for entry in entries if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    for name in names:
        try:
            lock = _locked(parent / name, wait=False)
        except OSError:  # it is in use, or gone by now, or of another user
            continue
        try:
            _put_back(parent / name)
            shutil.rmtree(parent / name, ignore_errors=True)
        finally:
            os.close(lock)


def _put_back(folder: Path) -> None:
    """A target that was moved away for a draft that did not take its place."""
    old = folder / "old"
    for kept in old.iterdir() if old.is_dir() else ():
        if not os.path.lexists(folder.parent / kept.name):
            os.replace(kept, folder.parent / kept.name)


def _make(parent: Path, name: str) -> tuple[Path, int]:
    """(a new scratch directory, its lock)"""
    if len(name) > LONGEST:
        name = f"{name[: LONGEST // 4]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{name}{MARK}", dir=parent))
        try:
            lock = _locked(folder, wait=True)
        except FileNotFoundError:
            continue  # another process took it for a leftover, in the moment before it was locked
        if folder.exists():
            return folder, lock
        os.close(lock)


def _locked(folder: Path, wait: bool) -> int:
    """An open handle of a directory that holds its lock; BlockingIOError if another process does."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(handle)
        raise
    return handle
