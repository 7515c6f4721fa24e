"""Output appears whole or not at all, and replaces nothing unasked."""

from __future__ import annotations

import pytest

from calmrl._support.output import WRITTEN_BY, new_directory, new_file
from calmrl._support.writable import PROBE, check_writable
from calmrl.errors import InputError


def _names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_appears_when_the_block_ends(tmp_path):
    with new_file(tmp_path / "deep" / "a.txt") as draft:
        draft.write_text("x")
        assert not (tmp_path / "deep" / "a.txt").exists()
    assert (tmp_path / "deep" / "a.txt").read_text() == "x"
    assert _names(tmp_path / "deep") == ["a.txt"]


def _fail_half_way(manager):
    with manager as draft:
        (draft / "half" if draft.is_dir() else draft).write_text("half")
        raise RuntimeError("half way")


@pytest.mark.parametrize("kind", [new_file, new_directory])
def test_a_failure_leaves_nothing(tmp_path, kind):
    with pytest.raises(RuntimeError, match="half way"):
        _fail_half_way(kind(tmp_path / "out"))
    assert _names(tmp_path) == []


def test_a_failed_replacement_leaves_what_was_there(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(RuntimeError, match="half way"):
        _fail_half_way(new_file(tmp_path / "a.txt", force=True))
    assert (tmp_path / "a.txt").read_text() == "old"


def test_existing_output_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with (
        pytest.raises(InputError, match=r"a\.txt exists; choose another name, or pass --force"),
        new_file(tmp_path / "a.txt"),
    ):
        pass
    with pytest.raises(InputError, match="exists and is not empty"), new_directory(tmp_path):
        pass
    with pytest.raises(InputError, match="is a file; give the name of a directory"), new_directory(tmp_path / "a.txt"):
        pass
    with pytest.raises(InputError, match="is a directory; give the name of a file"), new_file(tmp_path):
        pass


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


def test_an_empty_directory_is_free(tmp_path):
    (tmp_path / "out").mkdir()
    with new_directory(tmp_path / "out") as draft:
        (draft / "a").write_text("x")
    assert _names(tmp_path / "out") == ["a"]


def test_what_a_killed_probe_left_is_removed(tmp_path):
    (tmp_path / f"{PROBE}left").mkdir()
    (tmp_path / f"{PROBE}kept").mkdir()
    (tmp_path / f"{PROBE}kept" / "file").touch()  # not a probe of ours: probes are empty
    check_writable(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == [f"{PROBE}kept"]
