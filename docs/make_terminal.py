"""Make docs/assets/terminal.svg: what `calmrl search FOLDER "words"` prints for a folder that it has not seen before.

python docs/make_terminal.py FOLDER "words" "other words"

The lines are those of the commands, without progress and the path of the index; long ones are broken. The picture has its own
background, so that it can be read on light and on dark pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from html import escape
from pathlib import Path

TARGET = Path(__file__).parent / "assets" / "terminal.svg"
COLUMNS, LETTER, LINE, EDGE = 96, 8.4, 20, 18
COLOURS = {"$": "#9be29b", "#": "#98a3ad", "": "#e8ecef"}  # commands, what is said to people, what was found
NAME = "search"
PROGRESS = re.compile(r"\d+:\d\d:\d\d ")


def run(folder: Path, words: str, index: str) -> list[tuple[str, str]]:
    """(kind, line) of a command, what it says, and what it finds."""
    line = [sys.executable, "-m", "calmrl", NAME, folder.name, words, "-k", "5", "--index", index]
    wide = {**os.environ, "COLUMNS": "300"}  # so that no line is broken before it is looked at
    done = subprocess.run(line, cwd=folder.parent, capture_output=True, text=True, check=True, env=wide)
    said = [part for part in done.stderr.splitlines() if index not in part and not PROGRESS.match(part)]
    return [
        ("$", f'calmrl {NAME} {folder.name} "{words}" -k 5'),
        *_broken("#", said),
        *_broken("", done.stdout.splitlines()),
    ]


def _broken(kind: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(kind, part) for line in lines for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ") or [""]]


def drawn(lines: list[tuple[str, str]], title: str) -> str:
    """The lines as SVG."""
    width, height = round(2 * EDGE + COLUMNS * LETTER), 2 * EDGE + LINE * len(lines)
    texts = [
        f'<text x="{EDGE}" y="{EDGE + LINE * number + 14}" fill="{COLOURS[kind]}" xml:space="preserve">'
        f"{escape(f'$ {line}' if kind == '$' else line)}</text>"
        for number, (kind, line) in enumerate(lines)
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" rx="10" fill="#1d2329"/>',
        '<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14">',
        *texts, "</g>", "</svg>", "",
    ])  # fmt: skip


def main() -> None:
    folder, *queries = Path(sys.argv[1]).resolve(), *sys.argv[2:]
    lines: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as place:
        for words in queries:
            lines += [*([("", "")] if lines else []), *run(folder, words, f"{place}/index")]
    count = sum(file.is_file() for file in folder.rglob("*"))
    TARGET.write_text(drawn(lines, f"A terminal: {count} files are searched by words"), encoding="utf-8")
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
