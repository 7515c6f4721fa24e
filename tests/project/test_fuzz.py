"""A short run of the fuzzer: every reader gives what is in a damaged file, or an error that names it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import warm

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
CASES = 12  # of each of the 23 families; `python -m tests.fuzz` runs more


def test_damaged_files() -> None:
    for package in ("av", "PIL", "lancedb"):
        pytest.importorskip(package)
    command = [ROOT / "tests" / "fuzz", "--cases", 23 * CASES, "--seed", 3]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}
    ended = warm.run(command, environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    refused = ended.stdout.splitlines()[-1].split("|")[3]
    assert int(refused) > 100  # the files were damaged
