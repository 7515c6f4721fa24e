"""Commands that compute nothing load nothing that computes."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["torch", "numpy", "sklearn", "scipy", "pyarrow", "matplotlib", "accelerate"]
CODE = f"""
import sys
from calmrl.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        "--version",
        "ls",
        "ls imputers --json",
        "ls bases",
        "check impute",
        "check stamps",
        "check demo",
        "cp impute f",
    ],
)
def test_no_torch(line, tmp_path):
    run = [sys.executable, "-c", CODE, *line.split()]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.splitlines()[-1] == "[]"
