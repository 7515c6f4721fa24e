"""Tables of pages that a script writes again: they stand between `<!-- KIND: WORDS -->` and `<!-- end of KIND -->`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from calmrl.report import Results, read_results


def asked(about: str | None, command: str) -> tuple[Results, dict[str, Any]]:
    """The results in the directory that the script is called with, and their `meta`."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("results", type=Path, help=f"what `{command}` wrote")
    folder = parser.parse_args().results
    return read_results([folder]), json.loads((folder / "results.json").read_text(encoding="utf-8"))["meta"]


def marks(page: Path, kind: str) -> list[str]:
    """The words of the marks of a page."""
    return [found[1] for found in _place(kind).finditer(page.read_text(encoding="utf-8"))]


def fill(page: Path, kind: str, table: Callable[..., str]) -> None:
    """Write the tables of a page again; `table` gets the words of the mark."""
    text = page.read_text(encoding="utf-8")
    page.write_text(_place(kind).sub(lambda found: _filled(found, table(*found[1].split())), text), encoding="utf-8")
    print(f"{page.name}: {len(marks(page, kind))} tables")


def _filled(found: re.Match[str], table: str) -> str:
    first, *_, last = found[0].splitlines()
    return f"{first}\n{table}\n{last}"


def _place(kind: str) -> re.Pattern[str]:
    return re.compile(rf"<!-- {kind}: ([\w ]+) -->\n.*?<!-- end of {kind} -->", re.S)


def head(corner: str, columns: Sequence[str]) -> list[str]:
    """The first two lines of a table: all columns but the first hold numbers."""
    return [line(corner, columns), "|---|" + "---:|" * len(columns)]


def line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"
