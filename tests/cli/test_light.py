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


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("search nope.index dog", "no index at nope.index"),
        ("serve nope.index", "no index at nope.index"),
        ("add nope.index photos", "no index at nope.index"),
        ("remove nope.index a", "no index at nope.index"),
        ("index nope --out x", "nope is neither a file or folder nor a bundled data set"),
        ("open nope", "nope is neither a file or folder nor a bundled data set"),
    ],
)
def test_a_wrong_path_is_told_at_once(line, says, tmp_path):
    code = CODE.replace("assert not stop.code, stop.code", "assert stop.code == 2, stop.code")
    run = [sys.executable, "-c", code, *line.split()]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.startswith(f"calmrl: {says}")
    assert done.stderr.splitlines()[-1] == "[]"
