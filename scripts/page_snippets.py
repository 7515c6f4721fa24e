"""Runs every snippet of Markdown pages, page by page and from top to bottom, in the current directory.

python scripts/page_snippets.py README.md     # with the calmrl that this Python has

A comment above a snippet changes that: `<!-- not run: reason -->` leaves it out, `<!-- output varies: reason -->` runs
a console snippet without comparing what it prints. Needs nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PYTHON = (sys.executable,)
RUN = ("python", "bash", "console")
FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>not run|output varies): [^>]+ -->\n\s*)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


class Snippet(NamedTuple):
    language: str
    body: str
    mark: str | None
    line: int


def snippets(text: str) -> list[Snippet]:
    """All fenced blocks of a page, with the mark above each."""
    blocks = []
    for match in FENCE.finditer(text):
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("body")) + 1
        blocks.append(Snippet(match["language"], body, match["mark"], line))
    return blocks


def run_shell(script: str, environment: Mapping[str, str], python: Sequence[str] = PYTHON) -> str:
    """Both streams of a bash script in which `calmrl` is the calmrl of this Python, or of the one that these words start."""
    head = f'set -euo pipefail\ncalmrl() {{ {shlex.join(python)} -m calmrl "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", head + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", **environment},
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode} of\n{script}\n{done.stdout}")
    return done.stdout


def run_console(body: str, compare: bool, environment: Mapping[str, str], python: Sequence[str] = PYTHON) -> None:
    """`$ command` lines, each followed by what it prints; a line `...` stands for any lines; `# exit N` may end it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, expected = part.partition("\n")
        code = re.search(r"  # exit (\d)$", command)
        if code:
            command = f"set +e\n({command}\n)\ntest $? = {code[1]}"
        printed = run_shell(command, environment, python)
        if compare and expected.strip():
            pattern = r"\n".join(
                r"(?:.*\n)*?.*" if line == "..." else re.escape(line.rstrip()) for line in expected.rstrip().split("\n")
            )
            printed = "\n".join(line.rstrip() for line in printed.rstrip().split("\n"))
            if not re.fullmatch(pattern, printed):
                raise AssertionError(f"$ {command}\nprinted:\n{printed}\nbut the page says:\n{expected}")


def run_page(page: Path, environment: Mapping[str, str] | None = None, python: Sequence[str] = PYTHON) -> int:
    """Run the snippets of one page in the current directory; return how many ran."""
    names: dict = {"__name__": "snippet"}
    environment = environment or {}
    count = 0
    for snippet in snippets(page.read_text(encoding="utf-8")):
        if snippet.mark == "not run" or snippet.language not in RUN:
            continue
        count += 1
        if snippet.language == "python":
            code = "\n" * (snippet.line - 1) + snippet.body
            exec(compile(code, str(page), "exec"), names)
        elif snippet.language == "bash":
            run_shell(snippet.body, environment, python)
        else:
            run_console(snippet.body, snippet.mark != "output varies", environment, python)
    return count


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(f"{argument}: {run_page(Path(argument))} snippets ran")
