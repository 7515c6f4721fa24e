"""Folders of runs that were stopped: made where there is none, kept while something is worth it, for one run at a time."""

from __future__ import annotations

import pytest
from calmrl._support.unfinished import unfinished

from calmrl.errors import InputError


def test_folders_above_are_made_and_a_run_that_ends_well_leaves_nothing(tmp_path):
    target = tmp_path / "a" / "b" / "out"
    with unfinished(target, {"seed": 1}, ["*.npy"]) as part:
        assert part.is_dir()
        assert part.name == "out.part"
    assert not part.exists()


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_worth_it_is_kept_for_the_next_run(kept, tmp_path):
    name, part = "done.npy" if kept else "notes.txt", tmp_path / "out.part"

    def run():
        with unfinished(tmp_path / "out", {"seed": 1}, ["*.npy"]) as folder:
            (folder / name).write_text("x")
            raise InputError("stopped")

    with pytest.raises(InputError, match="stopped"):
        run()
    assert part.exists() == kept
    if kept:
        with unfinished(tmp_path / "out", {"seed": 1}, ["*.npy"]) as part:
            assert (part / "done.npy").is_file()


def test_one_run_at_a_time_and_only_with_the_same_arguments(tmp_path):
    target = tmp_path / "out"

    def run():
        with unfinished(target, {"seed": 1}, []):
            with pytest.raises(InputError, match="another run is writing"), unfinished(target, {"seed": 1}, []):
                pass
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        run()
    with pytest.raises(InputError, match="to start over"), unfinished(target, {"seed": 2}, []):
        pass


def test_what_a_stopped_run_left_is_looked_at(tmp_path):
    part = tmp_path / "out.part"
    part.mkdir()
    (part / "other").touch()
    with pytest.raises(InputError, match=r"out\.part was begun by another command; delete .* to start over, or choose"):
        unfinished(tmp_path / "out", {"a": 1}, []).__enter__()
    (part / "other").unlink()
    (part / "run.json").write_text('{"a": 1, "b": [1, 2], "d": 4}')
    with (
        pytest.raises(InputError, match=r"was begun with other arguments \(a, c, d differ\); delete"),
        unfinished(tmp_path / "out", {"a": 2, "b": (1, 2), "c": 3}, []),
    ):
        pass
    with unfinished(tmp_path / "out", {"a": 1, "b": (1, 2), "d": 4}, []) as folder:
        assert folder == part
    assert not part.exists()


def test_a_failure_that_is_not_the_users_keeps_everything(tmp_path):
    with pytest.raises(RuntimeError), unfinished(tmp_path / "out", {}, []):
        raise RuntimeError
    assert (tmp_path / "out.part" / "run.json").read_text() == "{}"
    with (
        pytest.raises(InputError, match="could not be written: no space left on device"),
        unfinished(tmp_path / "out", {}, ["*"]),
    ):
        raise OSError(28, "No space left on device")
    assert (tmp_path / "out.part").exists()
