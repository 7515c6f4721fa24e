"""Lines of a library are dropped, and nothing else."""

import os

import pytest

from calmrl.encoders.packaged import without_lines


def test_only_lines_with_the_beginning_are_dropped(capfd) -> None:
    handles = len(os.listdir("/proc/self/fd"))
    with without_lines("INFO: made"):
        os.write(2, b"INFO: made a delegate\nWARNING: something\n")
    os.write(2, b"INFO: made afterwards\n")
    assert len(os.listdir("/proc/self/fd")) == handles
    assert capfd.readouterr().err == "WARNING: something\nINFO: made afterwards\n"


def test_an_error_still_shows_what_was_written(capfd) -> None:
    with pytest.raises(ZeroDivisionError), without_lines("INFO"):
        1 / os.write(2, b"the reason\n").__sub__(11)
    assert capfd.readouterr().err == "the reason\n"
