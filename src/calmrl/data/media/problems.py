"""What cannot be used of a collection: one error for all media, the list of problems, and counts of what was skipped."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from calmrl._support.output import new_file
from calmrl._support.text import plural
from calmrl.errors import InputError


class Unreadable(InputError):
    """A file that cannot be used as the medium it should be. `kind` is short and the same for all files of its sort."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{detail} ({kind})")
        self.kind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[type[Unreadable], tuple[str, str]]:
        return Unreadable, (self.kind, self.detail)  # crosses process borders


def check_file(path: str) -> None:
    """Raise Unreadable unless `path` is a file with something in it."""
    if "\0" in path:
        raise Unreadable("bad path", repr(path))
    if os.path.isdir(path):
        raise Unreadable("directory instead of a file", path)
    if not os.path.exists(path):
        raise Unreadable("file not found", path)
    if os.path.getsize(path) == 0:
        raise Unreadable("empty file", path)


def label_of(source: Any) -> str:
    """How an error names what was to be decoded: a path, or what is in memory."""
    if isinstance(source, (bytes, bytearray)):
        return f"{len(source)} bytes in memory"
    return str(source) if isinstance(source, (str, os.PathLike)) else f"a {type(source).__name__} in memory"


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
    line: int = 0  # of the manifest; 0 where there is none
    id: str = ""
    column: str = ""
    detail: str = ""
    names: tuple[str, ...] = ()  # all files that it is about, where `detail` tells of the first


class Problems:
    """All problems of a collection, in the order in which they came up."""

    def __init__(self, entries: Iterable[MediaProblem] = ()) -> None:
        self.entries = list(entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[MediaProblem]:
        return iter(self.entries)

    def add(self, kind: str, scope: str, **where: Any) -> None:
        """Note a problem; `where` has the other fields of `MediaProblem`."""
        self.entries.append(MediaProblem(kind, scope, **where))

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

    def every(self, kind_of: Callable[[str], str]) -> list[str]:
        """A line per problem, and per file that no item claims, with what `kind_of` says it holds."""
        lines = []
        for problem in self.entries:
            if problem.scope == "file" and problem.names:
                lines += [_printable(f"{problem.kind}: {name} ({kind_of(name)})") for name in problem.names]
            else:
                lines.append(f"{problem.kind}: {_example(problem)}")
        return lines

    def write(self, path: Path) -> None:
        """All of them, as CSV."""
        with new_file(path, force=True) as draft, open(draft, "w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            columns = [field.name for field in fields(MediaProblem) if field.name != "names"]
            writer.writerow(columns)
            writer.writerows([_printable(getattr(problem, name)) for name in columns] for problem in self.entries)


def _example(problem: MediaProblem) -> str:
    where = [f"line {problem.line}" if problem.line else "", f"id {problem.id}" if problem.id else "", problem.column]
    return _printable(": ".join(part for part in (", ".join(p for p in where if p), problem.detail) if part))


def _printable(value: object) -> str:
    """Without line breaks, and with bytes that are not UTF-8 as \\xNN."""
    return " ".join(str(value).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").split())


LISTED, ITEMS = "listed", "items"
Counts = dict[str, int]  # "listed" items, "items" that are left out, and by modality the items with an unusable file


def count_skipped(parts: Mapping[str, str], problems: Iterable[MediaProblem]) -> dict[str, Counts]:
    """Part of the split -> what is left out of it; empty if nothing is.

    Parameters
    ----------
    parts : mapping of str to str
        Id -> part ("" without one) of every item, before anything was taken out.
    problems : iterable of MediaProblem
        What was taken out.
    """
    counts = {part: Counter({LISTED: size}) for part, size in Counter(parts.values()).items()}
    lost = 0
    for problem in problems:
        if problem.scope not in ("row", "cell"):
            continue
        here = counts.setdefault(parts.get(problem.id, ""), Counter())
        here[ITEMS if problem.scope == "row" else problem.column] += 1
        here[LISTED] += problem.scope == "row" and problem.kind != "no modality at all"  # such a row became no item
        lost += 1
    return {part: dict(count) for part, count in counts.items()} if lost else {}


def counts_of_test(left_out: Mapping[str, Mapping[str, int]], *, whole: bool = False) -> Counts:
    """The counts of the test part; of all parts together if there is no test part or `whole`."""
    chosen = left_out.values() if whole or "test" not in left_out else [left_out["test"]]
    total: Counter[str] = Counter()
    for counts in chosen:
        total.update(counts)
    return {name: count for name, count in total.items() if count or name == LISTED}


def skipped_words(counts: Mapping[str, int]) -> str:
    """5 items, vision of 37, audio of 131 (of 1,000 listed items); empty if nothing is left out."""
    words = [plural(counts[ITEMS], "item")] if counts.get(ITEMS) else []
    words += [f"{name} of {count:,}" for name, count in counts.items() if name not in (LISTED, ITEMS) and count]
    return f"{', '.join(words)} (of {plural(counts[LISTED], 'listed item')})" if words else ""
