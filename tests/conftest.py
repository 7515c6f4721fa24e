"""What several test files use."""

from __future__ import annotations

import pytest

from calmrl.cli import main


@pytest.fixture
def calmrl(capsys, monkeypatch):
    """The command line: arguments -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run
