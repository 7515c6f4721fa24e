"""What is wrong with a collection, collected instead of raised: a line per kind for people, a file with all of it."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from calmrl._support.output import new_file

CONSEQUENCE = {
    "cell": "this modality counts as missing",
    "row": "the row is left out",
    "table": "ignored",
    "file": "left aside",  # a file of a folder that no item claims; stops nothing
}
EXAMPLES = 3


@dataclass(frozen=True)
class MediaProblem:
    """One problem. `scope` says what it spoils: a modality of a row (cell), the row, something in the table, no item (file)."""

    kind: str
    scope: str
    line: int  # of the manifest; 0 where there is none
    id: str
    column: str
    detail: str


class Problems:
    """All problems of a collection, in the order in which they came up."""

    def __init__(self, entries: Iterable[MediaProblem] = ()) -> None:
        self.entries = list(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[MediaProblem]:
        return iter(self.entries)

    def add(self, kind: str, scope: str, *, line: int = 0, id: str = "", column: str = "", detail: str = "") -> None:
        self.entries.append(MediaProblem(kind, scope, line, id, column, detail))

    def blocking(self) -> list[MediaProblem]:
        """Those that stop a run unless they are allowed."""
        return [problem for problem in self.entries if problem.scope != "file"]

    def lines(self, allowed: bool) -> list[str]:
        """One line per kind, with the first examples; `allowed` says what follows from it."""
        groups: dict[tuple[str, str], list[MediaProblem]] = {}
        for problem in self.entries:
            groups.setdefault((problem.scope, problem.kind), []).append(problem)
        lines = []
        for (scope, kind), group in sorted(groups.items(), key=lambda pair: -len(pair[1])):
            shown = "; ".join(_example(problem) for problem in group[:EXAMPLES])
            more = f"; and {len(group) - EXAMPLES} more" if len(group) > EXAMPLES else ""
            then = f" -> {CONSEQUENCE[scope]}" if allowed or scope == "file" else ""
            lines.append(f"{len(group)} x {kind}{then}: {shown}{more}")
        return lines

    def write(self, path: Path) -> None:
        """All of them, as CSV."""
        with new_file(path, force=True) as draft, open(draft, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow([field.name for field in fields(MediaProblem)])
            writer.writerows([_printable(value) for value in astuple(problem)] for problem in self.entries)


def _example(problem: MediaProblem) -> str:
    where = [f"line {problem.line}" if problem.line else "", f"id {problem.id}" if problem.id else "", problem.column]
    return _printable(" ".join(part for part in (", ".join(p for p in where if p), problem.detail) if part))


def _printable(value: object) -> str:
    """Without line breaks, and with bytes that are not UTF-8 as \\xNN."""
    return " ".join(str(value).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").split())
