"""Output appears whole or not at all, and replaces nothing unasked."""

from __future__ import annotations

import errno
import os

import pytest

from calmrl._support import output
from calmrl._support.output import (
    PROBE,
    WRITTEN_BY,
    check_directory,
    check_free_file,
    check_writable,
    is_full,
    new_directory,
    new_file,
    part_folder,
    unwritable,
    writing,
)
from calmrl.errors import InputError


def _names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_appears_when_the_block_ends(tmp_path):
    with new_file(tmp_path / "deep" / "a.txt") as draft:
        draft.write_text("x")
        assert not (tmp_path / "deep" / "a.txt").exists()
    assert (tmp_path / "deep" / "a.txt").read_text() == "x"
    assert _names(tmp_path / "deep") == ["a.txt"]
    (tmp_path / "deep" / "empty").mkdir()  # is free
    with new_directory(tmp_path / "deep" / "empty") as folder:
        (folder / "a").write_text("x")
    assert _names(tmp_path / "deep" / "empty") == ["a"]


def _fail_half_way(manager):
    with manager as draft:
        (draft / "half" if draft.is_dir() else draft).write_text("half")
        raise RuntimeError("half way")


def test_a_failure_leaves_what_was_there(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    for manager in (
        new_file(tmp_path / "out"),
        new_directory(tmp_path / "out"),
        new_file(tmp_path / "a.txt", force=True),
    ):
        with pytest.raises(RuntimeError, match="half way"):
            _fail_half_way(manager)
    assert _names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_existing_output_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    for manager, said in (
        (new_file(tmp_path / "a.txt"), r"a\.txt exists; choose another name, or pass `force=True`"),
        (new_file(tmp_path / "a.txt", advice=", or wait"), r"a\.txt exists; choose another name, or wait$"),
        (new_file(tmp_path), "is a directory; give the name of a file"),
        (new_directory(tmp_path), "exists and is not empty; choose another name, or pass `force=True`"),
        (new_directory(tmp_path, advice=""), "exists and is not empty; choose another name$"),
        (new_directory(tmp_path / "a.txt"), "is a file; give the name of a directory"),
        (new_directory(tmp_path, force=True), "was not written by calmrl, so it is not replaced"),  # without a config
    ):
        with pytest.raises(InputError, match=said), manager:
            pass
    check_free_file(tmp_path / "a.txt", force=True)


def test_force_replaces_only_what_calmrl_wrote(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.yaml").write_text("kind: mine\n")
    with pytest.raises(InputError, match="was not written by calmrl"), new_directory(out, force=True):
        pass
    (out / "config.yaml").write_text(f"{WRITTEN_BY} 0.1.0\n")
    with new_directory(out, force=True) as draft:
        (draft / "new").write_text("x")
    assert _names(out) == ["new"]
    assert _names(tmp_path) == ["out"]


def test_what_a_killed_probe_left_is_removed(tmp_path):
    (tmp_path / f"{PROBE}left").mkdir()
    (tmp_path / f"{PROBE}kept").mkdir()
    (tmp_path / f"{PROBE}kept" / "file").touch()  # not a probe of ours: probes are empty
    check_writable(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == [f"{PROBE}kept"]


@pytest.mark.parametrize("ending", [".npz", ".CSV", ".zip"])
def test_a_directory_is_not_named_as_a_file(ending, tmp_path):
    with pytest.raises(InputError, match=f"ends in {ending}, as a file does, but a directory is written"):
        check_directory(tmp_path / f"a{ending}")
    (tmp_path / f"a{ending}").mkdir()
    check_directory(tmp_path / f"a{ending}")  # it is one already
    check_directory(tmp_path / "photos.index")


def test_a_target_that_fills_up_meanwhile_is_not_replaced(tmp_path):
    out = tmp_path / "out"

    def write():
        with new_directory(out) as draft:
            (draft / "mine").touch()
            out.mkdir()
            (out / "theirs").touch()

    with pytest.raises(InputError, match="exists and is not empty"):
        write()
    assert _names(out) == ["theirs"]


def test_names_and_paths_that_are_too_long(tmp_path, monkeypatch):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    check_writable(tmp_path / ("x" * (longest - 24)))
    for name in ("x" * (longest - 23), "ä" * ((longest - 22) // 2)):
        with pytest.raises(
            InputError, match=rf"{name[:40]}\.\.\. is a name of \d+ bytes, too long .* at most {longest - 24}"
        ):
            check_writable(tmp_path / name / "below")
    room = len(os.fsencode(tmp_path)) + 10
    monkeypatch.setattr(os, "pathconf", lambda folder, name: 255 if name == "PC_NAME_MAX" else room + 48)
    check_writable(tmp_path / ("y" * 9))
    with pytest.raises(InputError, match=rf"is a path of {room + 1} bytes, too long; choose another place"):
        check_writable(tmp_path / ("y" * 10))


def test_both_the_folder_and_what_is_in_it_are_tried(tmp_path, monkeypatch):
    tried = []
    monkeypatch.setattr(output, "_probe", tried.append)
    (tmp_path / "out").mkdir()
    check_writable(tmp_path / "out")
    assert sorted(tried) == [tmp_path, tmp_path / "out"]
    tried.clear()
    check_writable(tmp_path / "new" / "out")
    assert tried == [tmp_path]


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    for error in (
        OSError(errno.ENOSPC, "No space"),
        OSError(errno.EDQUOT, "x"),
        RuntimeError("Disk QUOTA exceeded here"),
        OSError("8000 requested and 3968 written"),
    ):
        with pytest.raises(InputError, match=r"^out could not be written: .*; make room, then run"), writing("out"):
            raise error
    for error in (OSError(errno.EACCES, "x"), RuntimeError("odd"), InputError("no space left on device")):
        with pytest.raises(type(error)) as caught, writing("out"):
            raise error
        assert caught.value is error
    with pytest.raises(InputError, match=r"^out could not be written"), writing("out"), writing("out/part"):
        raise OSError(errno.ENOSPC, "No space")
    assert is_full(OSError(errno.EFBIG, "x"))
    assert unwritable(OSError("x")) is None
    assert unwritable(OSError(errno.EACCES, "Odd")) is None  # of no file
    assert unwritable(OSError(errno.EACCES, "Odd", "f")) == "f cannot be written or read: odd; choose another place"
    full = unwritable(OSError(errno.ENOSPC, "Odd", b"f"))
    assert full == "f cannot be written or read: odd; make room, then run the same command again"

    def refused(place):
        raise PermissionError(errno.EACCES, "Permission denied", "hidden")

    monkeypatch.setattr(output, "_probe", refused)
    with pytest.raises(InputError, match="out cannot be written or read: permission denied; choose another place"):
        check_writable(tmp_path / "out")


def test_what_killed_processes_left_is_gone_before_anything_is_asked(tmp_path):
    (tmp_path / "out").mkdir()
    for folder in (tmp_path, tmp_path / "out"):
        (folder / ".x.calmrl-abcd1234").mkdir()
    check_directory(tmp_path / "out")
    assert _names(tmp_path) == ["out"]
    assert _names(tmp_path / "out") == []


# ---- folders of runs that were stopped


def run(target, given, name=None, error=None, worth=("*.npy",)):
    """One run that writes a file, or looks for nothing, and is perhaps stopped."""
    with part_folder(target, worth, given) as folder:
        assert folder == target.with_name("out.part")
        if name:
            (folder / name).write_text("x")
        if error:
            raise error
        return _names(folder)


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_worth_it_is_kept_for_the_next_run(kept, tmp_path):
    target = tmp_path / "a" / "b" / "out"  # folders above are made
    part = target.with_name("out.part")
    with pytest.raises(InputError, match="stopped"):
        run(target, {"seed": 1}, "done.npy" if kept else "notes.txt", InputError("stopped"))
    assert part.exists() == kept
    assert run(target, {"seed": 1}) == (["done.npy", "run.json"] if kept else ["run.json"])
    assert not part.exists()  # a run that ends well leaves nothing


def test_one_run_at_a_time_and_only_with_the_same_arguments(tmp_path):
    target, part = tmp_path / "out", tmp_path / "out.part"
    with part_folder(target, [], {"seed": 1}), pytest.raises(InputError, match="another run is writing"):
        run(target, {"seed": 1})
    part.mkdir()
    (part / "other").touch()
    with pytest.raises(InputError, match=r"out\.part was begun by another command; delete .* to start over, or choose"):
        run(target, {"a": 1})
    (part / "other").unlink()
    (part / "run.json").write_text('{"a": 1, "b": [1, 2], "d": 4}')
    with pytest.raises(InputError, match=r"was begun with other arguments \(a, c, d differ\); delete"):
        run(target, {"a": 2, "b": (1, 2), "c": 3})
    run(target, {"a": 1, "b": (1, 2), "d": 4})
    assert not part.exists()


def test_a_failure_that_is_not_the_users_keeps_everything(tmp_path):
    with pytest.raises(RuntimeError):
        run(tmp_path / "out", {}, error=RuntimeError())
    assert (tmp_path / "out.part" / "run.json").read_text() == "{}"
    with pytest.raises(InputError, match="could not be written: no space left on device"):
        run(tmp_path / "out", {}, error=OSError(28, "No space left on device"), worth=["*"])
    assert (tmp_path / "out.part").exists()
