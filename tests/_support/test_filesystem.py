"""Locks exclude, what is replaced is there until it is replaced, and what killed processes leave is removed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from calmrl._support import filesystem
from calmrl._support.filesystem import (
    check_space,
    exchange,
    flush,
    locked,
    put_in_place,
    read_steadily,
    remove_leftovers,
    scratch,
)
from calmrl._support.output import WRITTEN_BY, check_free, new_directory, new_file
from calmrl.errors import InputError

SOURCE = Path(__file__).parents[2] / "src"
DIES = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from calmrl._support import output, filesystem
target, where, nth = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
calls = 0

def dying(real):
    def run(*a, **k):
        global calls
        calls += 1
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*a, **k)
    return run

if where == "no exchange":
    filesystem.exchange = lambda one, other: False
    os.rename = dying(os.rename)
elif where == "before exchange":
    filesystem.exchange = dying(filesystem.exchange)
elif where == "after exchange":
    filesystem.shutil.rmtree = dying(filesystem.shutil.rmtree)
with output.new_directory(target, force=True) as draft:
    (draft / "config.yaml").write_text(output.WRITTEN_BY)
    (draft / "new").write_text("new")
    if where == "inside":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def _old(target: Path) -> None:
    target.mkdir()
    (target / "config.yaml").write_text(WRITTEN_BY)
    (target / "old").write_text("old")


def _die(target: Path, where: str, nth: int = 1) -> None:
    run = [sys.executable, "-c", DIES, str(target), where, str(nth)]
    done = subprocess.run(run, env=os.environ | {"PYTHONPATH": str(SOURCE)}, check=False)
    assert done.returncode == -9


@pytest.mark.parametrize(
    ("where", "nth", "left"),
    [("inside", 1, "old"), ("before exchange", 1, "old"), ("after exchange", 1, "new"), ("no exchange", 1, "old")],
)
def test_a_killed_replacement_leaves_the_old_or_the_new(where, nth, left, tmp_path):
    target = tmp_path / "out"
    _old(target)
    _die(target, where, nth)
    assert (target / left).read_text() == left  # at once, without any repair
    assert len(_names(tmp_path)) == 2  # and what was being written
    with new_file(tmp_path / "other") as draft:
        draft.write_text("x")
    assert _names(tmp_path) == ["other", "out"]
    assert (target / left).read_text() == left


def test_without_exchange_what_was_moved_away_is_put_back(tmp_path):
    target = tmp_path / "out"
    _old(target)
    _die(target, "no exchange", 3)  # after one that fails, and one that moves the target away
    assert not target.exists()  # the smallest window that such a system has
    with pytest.raises(InputError, match="exists and is not empty"):
        check_free(target)  # put back before it is asked whether it is there
    assert _names(tmp_path) == ["out"]
    assert (target / "old").read_text() == "old"


def test_the_scratch_of_a_living_process_stays(tmp_path):
    with scratch(tmp_path / "a") as folder:
        (folder / "draft").write_text("x")
        with new_file(tmp_path / "b") as draft:
            draft.write_text("y")
        remove_leftovers(tmp_path)
        assert (folder / "draft").read_text() == "x"
    assert _names(tmp_path) == ["b"]


def test_hidden_folders_of_others_stay(tmp_path):
    for name in (".git", ".a.calmrl-x", ".calmrl-notours", "a.calmrl-12345678"):
        (tmp_path / name).mkdir()
    (tmp_path / ".file.calmrl-12345678").write_text("a file")
    before = _names(tmp_path)
    remove_leftovers(tmp_path)
    assert _names(tmp_path) == before


def test_two_directories_swap_their_names(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this system cannot exchange two directories")
    assert (_names(tmp_path / "a"), _names(tmp_path / "b")) == (["b"], ["a"])
    with pytest.raises(OSError, match=os.strerror(errno.ENOENT)):
        exchange(tmp_path / "a", tmp_path / "nowhere")


def test_a_link_stays_one(tmp_path):
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real").mkdir()
    with new_directory(tmp_path / "link") as draft:
        (draft / "a").touch()
    assert (tmp_path / "link").is_symlink()
    assert _names(tmp_path / "real") == ["a"]


@pytest.mark.parametrize(("length", "shown"), [(80, "x" * 80), (81, "x" * 20 + "-")])
def test_names_of_scratch_directories(length, shown, tmp_path):
    with scratch(tmp_path / "deep" / ("x" * length)) as folder:
        assert folder.parent == tmp_path / "deep"
        assert folder.name.startswith(f".{shown}")
        assert folder.name.partition(".calmrl-")[0] == f".{shown}" + ("" if length == 80 else folder.name[22:38])
        assert filesystem.NAME.fullmatch(folder.name)
    assert _names(tmp_path / "deep") == []


def test_what_was_put_there_meanwhile_is_not_replaced_by_what_was_moved_away(tmp_path):
    left = tmp_path / ".out.calmrl-abcd1234"
    for name in ("out", "other"):
        (left / "old" / name).mkdir(parents=True)
        (left / "old" / name / "old").touch()
    (tmp_path / "out").symlink_to("nowhere")  # also something
    remove_leftovers(tmp_path)
    assert _names(tmp_path) == ["other", "out"]
    assert (tmp_path / "out").is_symlink()
    assert _names(tmp_path / "other") == ["old"]


@pytest.mark.parametrize(("number", "can"), [(errno.ENOSYS, False), (errno.EINVAL, False), (errno.EACCES, None)])
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_systems_that_cannot_exchange(system, number, can, tmp_path, monkeypatch):
    asked, one, other = [], tmp_path / "a", tmp_path / "b"
    name = "renameat2" if system == "linux" else "renamex_np"
    library = SimpleNamespace(**{name: lambda *given: asked.append(given) or -1})
    monkeypatch.setattr(filesystem.sys, "platform", system)
    monkeypatch.setattr(filesystem.ctypes, "CDLL", lambda name, use_errno: library)
    monkeypatch.setattr(filesystem.ctypes, "get_errno", lambda: number)
    if can is None:
        with pytest.raises(PermissionError) as caught:
            exchange(one, other)
        assert caught.value.filename == str(other)
    else:
        assert exchange(one, other) is can
    paths = os.fsencode(one), os.fsencode(other)
    assert asked == [(-100, paths[0], -100, paths[1], 2) if system == "linux" else (*paths, 2)]
    monkeypatch.setattr(filesystem.ctypes, "CDLL", lambda name, use_errno: object())
    assert exchange(one, other) is False
    monkeypatch.setattr(filesystem.sys, "platform", "win32")
    monkeypatch.setattr(filesystem.ctypes, "CDLL", None)  # not even asked for
    assert exchange(one, other) is False


def test_a_replacement_that_fails_leaves_the_old_in_place(tmp_path, monkeypatch):
    _old(tmp_path / "out")
    real = os.rename

    def refuses(source, target):
        if Path(source).name == "new" and not Path(target).exists():
            raise PermissionError(errno.EACCES, "in use", str(target))
        real(source, target)

    monkeypatch.setattr(filesystem, "exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", refuses)
    with pytest.raises(PermissionError), new_directory(tmp_path / "out", force=True) as draft:
        (draft / "config.yaml").write_text(WRITTEN_BY)
    assert _names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "old").read_text() == "old"


@pytest.mark.parametrize("exchanged", [True, False])
def test_a_target_that_others_take_and_free_at_the_same_moment(exchanged, tmp_path, monkeypatch):
    """Absent, there, moved away by another, there again: the draft gets its place in the end."""
    target, real, swaps = tmp_path / "out", filesystem.exchange, []
    _old(target)

    def swap(one, other):
        swaps.append(other)
        if len(swaps) == 1:  # another process has moved it away
            other.rename(tmp_path / "elsewhere")
            raise FileNotFoundError(errno.ENOENT, "gone", str(other))
        return exchanged and real(one, other)

    def rename(source, goal, plain=os.rename):
        if Path(goal) == target and len(swaps) == 1 and not target.exists():
            _old(target)  # and puts its own there just now
        plain(source, goal)

    monkeypatch.setattr(filesystem, "exchange", swap)
    monkeypatch.setattr(os, "rename", rename)
    with scratch(target) as folder:
        (folder / "new").mkdir()
        (folder / "new" / "mine").touch()
        put_in_place(folder / "new", target)
    assert len(swaps) == 2
    assert _names(target) == ["mine"]
    assert _names(tmp_path) == ["elsewhere", "out"]


def test_a_scratch_directory_that_another_process_removed_is_made_again(tmp_path, monkeypatch):
    real, tries = filesystem._lock, []

    def lock(handle, file):
        tries.append(file)
        if len(tries) == 1:  # removed between opening and locking
            file.unlink()
            file.parent.rmdir()
        return len(tries) != 2 and real(handle, file)  # the second is taken for a leftover: another has its lock

    monkeypatch.setattr(filesystem, "_lock", lock)
    with scratch(tmp_path / "out") as folder:
        assert folder == tries[2].parent
        assert folder.is_dir()
    assert len({file.parent for file in tries}) == 3


# ---- locks


def _handles() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_one_at_a_time_and_nothing_stays(tmp_path):
    before = _handles()
    for _ in range(2):
        with locked(tmp_path / "deep" / "out"):
            held = _handles()
            with (
                pytest.raises(InputError, match=r"^another run is writing s3://b/out; wait until it has ended$"),
                locked(tmp_path / "deep" / "out", "s3://b/out"),
            ):
                pass
            assert _handles() == held
            with locked(tmp_path / "deep" / "other"):
                assert _names(tmp_path / "deep") == [".other.calmrl-lock", ".out.calmrl-lock"]
    assert _names(tmp_path / "deep") == []
    assert _handles() == before


def test_a_lock_that_was_removed_before_it_was_taken_guards_nothing(tmp_path, monkeypatch):
    """The holder removes its file after another has opened it: that one must not share the next file's place."""
    real, opened = filesystem._lock, []

    def lock(handle, file):
        opened.append(os.fstat(handle).st_ino)
        if len(opened) == 1:
            file.unlink()
        return real(handle, file)

    monkeypatch.setattr(filesystem, "_lock", lock)
    with locked(tmp_path / "out"):
        assert len(opened) == 2
        assert os.stat(tmp_path / ".out.calmrl-lock").st_ino == opened[1]
        monkeypatch.setattr(filesystem, "_lock", real)
        with pytest.raises(InputError, match="another run"), locked(tmp_path / "out"):
            pass


@pytest.mark.skipif(filesystem.fcntl is None, reason="needs flock")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_a_sentence(number, tmp_path, monkeypatch):
    def refuses(handle, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filesystem.fcntl, "flock", refuses)
    before = _handles()
    said = (
        rf"{tmp_path}.* is on a file system that refuses locks \({os.strerror(number)}\), so .*; write to another disk"
    )
    for write in (
        lambda: locked(tmp_path / "out"),
        lambda: new_file(tmp_path / "out"),
        lambda: scratch(tmp_path / "out"),
    ):
        with pytest.raises(InputError, match=said), write():
            raise AssertionError("went on without a lock")
    assert _handles() == before
    assert not (tmp_path / "out").exists()


# ---- reading and the disk


def test_what_is_replaced_while_it_is_read_is_read_again(tmp_path):
    _old(tmp_path / "out")
    reads = []

    def read():
        reads.append((tmp_path / "out" / "old").exists())
        if reads == [True]:
            with new_directory(tmp_path / "out", force=True) as draft:
                (draft / "config.yaml").write_text(WRITTEN_BY)
            raise InputError("the checksum is of another file")
        return "whole"

    assert read_steadily(tmp_path / "out", read) == "whole"
    assert reads == [True, False]

    def damaged():
        reads.append(None)
        raise InputError("damaged")

    with pytest.raises(InputError, match="damaged"):
        read_steadily(tmp_path / "out", damaged)
    assert len(reads) == 3


@pytest.mark.parametrize("directories", [True, False])
def test_what_is_flushed(directories, tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").touch()
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_ino))
    if not directories:
        monkeypatch.delattr(os, "O_DIRECTORY")
    flush(tmp_path)
    paths = [tmp_path, tmp_path / "a", tmp_path / "a" / "file"] if directories else [tmp_path / "a" / "file"]
    assert sorted(flushed) == sorted(os.stat(path).st_ino for path in paths)


def test_room_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(filesystem.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1100))
    check_space(tmp_path, 1100, "out")
    with pytest.raises(InputError, match=r"^out needs 3\.2 kB but 1\.1 kB are free; make room, then run the same"):
        check_space(tmp_path, 3200, "out")
    with pytest.raises(InputError, match=r"^out needs 4000000 TB but"):
        check_space(tmp_path, 4 * 10**18, "out")
