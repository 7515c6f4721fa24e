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
    main(sys.argv[2:])
except SystemExit as stop:
    assert (stop.code or 0) == int(sys.argv[1]), stop.code
heavy = {HEAVY} + ["yaml", "http.client"] * (sys.argv[2] in ("ls", "--help"))
print([name for name in heavy if name in sys.modules], file=sys.stderr)
"""
NO_INDEX, NO_SOURCE = "no index at nope.index", "nope is neither a file or folder nor a bundled data set"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        *((line, "") for line in ("--help", "--version", "ls", "ls imputers --json", "ls bases")),
        *((line, "") for line in ("check impute", "check stamps", "check demo", "cp impute f")),
        ("search nope.index dog", NO_INDEX), ("serve nope.index", NO_INDEX), ("add nope.index photos", NO_INDEX),
        ("remove nope.index a", NO_INDEX), ("index nope --out x", NO_SOURCE), ("open nope", NO_SOURCE),
    ],
)  # fmt: skip
def test_no_torch_and_a_wrong_path_is_told_at_once(line, says, tmp_path):
    run = [sys.executable, "-c", CODE, "2" if says else "0", *line.split()]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.startswith(f"calmrl: {says}") or not says
    assert done.stderr.splitlines()[-1] == "[]"
