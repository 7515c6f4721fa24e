"""What is replaced is there until it is replaced, and what killed processes leave is removed, never what living ones use."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from calmrl._support.scratch import exchange, put_in_place, remove_leftovers, scratch

from calmrl._support import scratch as scratch_module
from calmrl._support.output import WRITTEN_BY, check_free, new_directory, new_file
from calmrl.errors import InputError

SOURCE = Path(__file__).parents[2] / "src"
DIES = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from calmrl._support import output, scratch
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
    scratch.exchange = lambda one, other: False
    os.replace = dying(os.replace)
elif where == "before exchange":
    scratch.exchange = dying(scratch.exchange)
elif where == "after exchange":
    scratch.shutil.rmtree = dying(scratch.shutil.rmtree)
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
    _die(target, "no exchange", 2)
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


def test_without_exchange_a_directory_is_replaced_too(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch_module, "exchange", lambda one, other: False)
    _old(tmp_path / "out")
    with scratch(tmp_path / "out") as folder:
        (folder / "new").mkdir()
        put_in_place(folder / "new", tmp_path / "out", folder)
    assert _names(tmp_path) == ["out"]
    assert _names(tmp_path / "out") == []


def test_a_long_name_and_a_link(tmp_path):
    name = "x" * 200
    with new_directory(tmp_path / name) as draft:
        (draft / "a").touch()
    assert _names(tmp_path) == [name]
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
        assert scratch_module.NAME.fullmatch(folder.name)
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
def test_systems_that_cannot_exchange(number, can, tmp_path, monkeypatch):
    asked = []
    library = SimpleNamespace(renameat2=lambda *given: asked.append(given) or -1)
    monkeypatch.setattr(scratch_module.ctypes, "CDLL", lambda name, use_errno: library)
    monkeypatch.setattr(scratch_module.ctypes, "get_errno", lambda: number)
    if can is None:
        with pytest.raises(PermissionError) as caught:
            exchange(tmp_path / "a", tmp_path / "b")
        assert caught.value.filename == str(tmp_path / "b")
    else:
        assert exchange(tmp_path / "a", tmp_path / "b") is can
    assert asked == [(-100, os.fsencode(tmp_path / "a"), -100, os.fsencode(tmp_path / "b"), 2)]
    monkeypatch.setattr(scratch_module.ctypes, "CDLL", lambda name, use_errno: object())
    assert exchange(tmp_path / "a", tmp_path / "b") is False


def test_a_scratch_directory_that_another_process_removed_is_made_again(tmp_path, monkeypatch):
    real, tries = scratch_module._locked, []

    def locked(folder, wait):
        tries.append(folder)
        if len(tries) == 1:  # removed before it was locked
            folder.rmdir()
        handle = real(folder, wait)
        if len(tries) == 2:  # removed while it waited
            folder.rmdir()
        return handle

    monkeypatch.setattr(scratch_module, "_locked", locked)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    folder, lock = scratch_module._make(tmp_path, "out")
    assert len(tries) == 3
    assert folder == tries[2]
    assert folder.is_dir()
    os.close(lock)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before  # the handle of the second is closed


def test_a_lock_that_is_taken_leaves_no_handle_open(tmp_path):
    held = scratch_module._locked(tmp_path, wait=False)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(BlockingIOError):
        scratch_module._locked(tmp_path, wait=False)
    if before:
        assert len(os.listdir("/proc/self/fd")) == before
    os.close(held)
