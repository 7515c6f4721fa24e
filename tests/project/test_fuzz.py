"""A short run of the fuzzer: every reader gives what is in a damaged file, or an error that names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = 25  # of each family


@pytest.mark.parametrize(
    ("packages", "families"),
    [
        (
            (),
            "directory,by-hand,npz,packed-npz,safetensors,parquet,shards,yaml,csv,jsonl,manifest-parquet,results,records",
        ),
        (("transformers",), "imputer,aligner,model,checkpoint,official-pt"),
        (("av", "PIL"), "pictures,sounds,films"),
        (("lancedb",), "index"),
    ],
    ids=["tables", "models", "media", "index"],
)
def test_damaged_files(packages: tuple[str, ...], families: str) -> None:
    for package in packages:
        pytest.importorskip(package)
    cases = str(CASES * len(families.split(",")))
    command = [sys.executable, str(ROOT / "tests" / "fuzz"), "--cases", cases, "--seed", "3", "--only", families]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RUST_BACKTRACE": "0"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "| all | " in ended.stdout
