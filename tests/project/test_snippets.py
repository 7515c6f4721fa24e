"""Every snippet of README.md and docs/*.md runs, page by page and from top to bottom, in one empty directory."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.support import warm

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "page_snippets.py"))
HERE = {"PYTHONPATH": str(ROOT / "src")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    SCRIPT["run_page"](page, HERE, warm.command())


def test_snippets_are_found_with_their_marks():
    text = "a\n```python\nx = 1\n```\n<!-- not run: slow -->\n```bash\nmake\n```\n"
    text += "1. b\n\n    ```console\n    $ ls\n    ```\n"
    assert [(s.language, s.body, s.mark) for s in SCRIPT["snippets"](text)] == [
        ("python", "x = 1\n", None),
        ("bash", "make\n", "not run"),
        ("console", "$ ls\n", None),
    ]


def test_a_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n```bash\ntouch made\n```\n<!-- not run: no -->\n```python\n1 / 0\n```\n")
    assert SCRIPT["run_page"](page, HERE) == 2
    assert (tmp_path / "made").is_file()
    page.write_text("```python\nx = 1\n```\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError):
        SCRIPT["run_page"](page, HERE)


def test_console_output_is_compared():
    run_console = SCRIPT["run_console"]
    run_console("$ echo a; echo b; echo c\na\n...\nc\n$ exit 2  # exit 2\n", True, HERE)
    with pytest.raises(AssertionError, match="but the page says"):
        run_console("$ echo a\nb\n", True, HERE)
    with pytest.raises(AssertionError, match="exit code 1"):
        run_console("$ false\n", False, HERE)
