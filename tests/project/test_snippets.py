"""Every snippet of README.md and docs/*.md runs, page by page and from top to bottom, in one empty directory.

A comment above a snippet changes that: `<!-- not run: reason -->` leaves it out, `<!-- output varies: reason -->` runs
a console snippet without comparing what it prints.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("python", "bash", "console")
FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>not run|output varies): [^>]+ -->\n\s*)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Snippet:
    language: str
    body: str
    mark: str | None
    line: int


def snippets(text: str) -> list[Snippet]:
    found = []
    for match in FENCE.finditer(text):
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("body")) + 1
        found.append(Snippet(match["language"], body, match["mark"], line))
    return found


def run_shell(script: str) -> str:
    """Both streams of a bash script in which `calmrl` is the calmrl under test."""
    head = f'set -euo pipefail\ncalmrl() {{ "{sys.executable}" -m calmrl "$@"; }}\n'
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        ["bash", "-c", head + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode} of\n{script}\n{done.stdout}")
    return done.stdout


def run_console(body: str, compare: bool) -> None:
    """`$ command` lines, each followed by what it prints; a line `...` stands for any lines; `# exit N` may end it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        code = re.search(r"  # exit (\d)$", command)
        if code:
            command = f"set +e\n({command}\n)\ntest $? = {code[1]}"
        printed = run_shell(command)
        if compare and expected.strip():
            pattern = r"\n".join(
                r"(?:.*\n)*?.*" if line == "..." else re.escape(line.rstrip()) for line in expected.rstrip().split("\n")
            )
            printed = "\n".join(line.rstrip() for line in printed.rstrip().split("\n"))
            assert re.fullmatch(pattern, printed), f"$ {command}\nprinted:\n{printed}\nbut the page says:\n{expected}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "snippet"}
    for snippet in snippets(page.read_text(encoding="utf-8")):
        if snippet.mark == "not run" or snippet.language not in RUN:
            continue
        if snippet.language == "python":
            code = "\n" * (snippet.line - 1) + snippet.body
            exec(compile(code, str(page), "exec"), names)
        elif snippet.language == "bash":
            run_shell(snippet.body)
        else:
            run_console(snippet.body, compare=snippet.mark != "output varies")


def test_snippets_are_found_with_their_marks():
    text = "a\n```python\nx = 1\n```\n<!-- not run: slow -->\n```bash\nmake\n```\n"
    text += "1. b\n\n    ```console\n    $ ls\n    ```\n"
    assert [(s.language, s.body, s.mark) for s in snippets(text)] == [
        ("python", "x = 1\n", None),
        ("bash", "make\n", "not run"),
        ("console", "$ ls\n", None),
    ]


def test_console_output_is_compared():
    run_console("$ echo a; echo b; echo c\na\n...\nc\n$ exit 2  # exit 2\n", compare=True)
    with pytest.raises(AssertionError, match="but the page says"):
        run_console("$ echo a\nb\n", compare=True)
    with pytest.raises(AssertionError, match="exit code 1"):
        run_console("$ false\n", compare=False)
