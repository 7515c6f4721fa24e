"""The package ships its types, and they are good enough for a strict user."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import calmrl

SAMPLE = Path(__file__).parent / "user_sample.py"


def test_the_package_is_typed():
    assert (Path(calmrl.__file__).parent / "py.typed").is_file()


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
def test_a_sample_user_file_is_strictly_typed(tmp_path, pytestconfig):
    source = Path(calmrl.__file__).parents[1]
    config = tmp_path / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = true\nignore_missing_imports = true\nmypy_path = {source}\n")
    (tmp_path / "sample.py").write_text(SAMPLE.read_text())
    (tmp_path / "wrong.py").write_text("import calmrl\ncalmrl.GaussianImputer(latnt_dim=3)\ncalmrl.losses.NoLoss\n")
    line = [sys.executable, "-m", "mypy", "--config-file", str(config), "--follow-imports=silent"]
    kept = getattr(pytestconfig, "cache", None)  # what it read of torch and others is there in the next run
    read = kept.mkdir("mypy") if kept else tmp_path / "cache"
    line += ["--cache-dir", str(read), "sample.py", "wrong.py"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    wrong = [text.rpartition("[")[0].partition(": ")[0] for text in done.stdout.splitlines() if ": error: " in text]
    assert wrong == ["wrong.py:2", "wrong.py:3"], done.stdout + done.stderr
