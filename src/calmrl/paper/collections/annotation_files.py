"""Annotation files as publishers ship them: CSV, JSON, lists of lines and Parquet, and the names of clips."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from calmrl.errors import InputError

PARTS = {
    "train": ("train", "training", "development", "dev"),
    "val": ("val", "validation", "valid", "validate"),
    "test": ("test", "testing", "evaluation", "eval"),
}


def part_of(path: Path) -> str | None:
    """The part of a split that the name of a file says, if it says exactly one: msrvtt_train.json -> train."""
    words = set(re.split(r"[^a-z]+", path.stem.lower()))
    parts = [part for part, names in PARTS.items() if words & set(names)]
    return parts[0] if len(parts) == 1 else None


def wrong_form(path: Path, got: str, expected: str, *, line: int = 1) -> InputError:
    """An annotation file that is not what its collection publishes."""
    return InputError(f"{path} line {line}: expected {expected}; got {got}; give the file as its publisher ships it")


@dataclass(slots=True)
class ClipNames(Sequence[str]):
    """id_000030, id_30, id_30_40, id_30000_40000, ..., the same after a Y, other names, and the id alone at last.

    They are made when they are asked for: two million items with twenty names each would not fit into memory.

    Parameters
    ----------
    video : str
        The id of the video.
    start, end : float
        Seconds.
    others : list of str
        Names that the clip has besides.
    whole : bool
        Whether a file that is called by the id alone is this clip.
    """

    video: str
    start: float
    end: float
    others: list[str] = field(default_factory=list)
    whole: bool = True

    def _all(self) -> list[str]:
        video, start, end = self.video, self.start, self.end
        names = [f"{video}_{start:06.0f}", f"{video}_{start:g}", f"{video}_{start:.3f}", f"{video}_{1000 * start:.0f}"]
        names += [f"{video}_{start:g}_{end:g}", f"{video}_{1000 * start:.0f}_{1000 * end:.0f}"]
        names += [
            f"{video}_{start:06.0f}_{end:06.0f}",
            f"{video}_{start:.3f}_{end:.3f}",
            f"{video}_{start:.1f}_{end:.1f}",
        ]
        alone = [video] if self.whole else []
        return list(
            dict.fromkeys([*names, *(f"Y{name}" for name in names), *self.others, *alone, *(f"Y{v}" for v in alone)])
        )

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._all()[place]


MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
SHOWN = 80  # characters of a bad value


def read_text(path: Path, notes: list[str]) -> str:
    """The whole file, decoded."""
    if not path.is_file():
        raise InputError(f"no annotation file at {path}")
    content = path.read_bytes()
    codec = next((codec for mark, codec in MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        if codec != "utf-8":
            raise InputError(f"{path} starts as {codec} but is not ({error.reason}); save it as UTF-8") from error
        line = content.count(b"\n", 0, error.start) + 1
    for codec in ("cp1252", "latin-1"):
        try:
            text = content.decode(codec)
        except UnicodeDecodeError:
            continue
        notes.append(f"{path.name} is not UTF-8 (first in line {line}); it is read as {codec}")
        return text
    raise AssertionError("Latin-1 decodes every byte")


def read_lines(path: Path, notes: list[str]) -> Iterator[tuple[int, str]]:
    """(line number, line) of every line that is not blank."""
    for number, line in enumerate(read_text(path, notes).splitlines(), start=1):
        if line.strip():
            yield number, line.strip()


def read_cells(path: Path, notes: list[str], *, comment: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every row of a CSV file; lines that begin with `comment` are left out."""
    reader = csv.reader(io.StringIO(read_text(path, notes), newline=""), skipinitialspace=True)
    try:
        for row in reader:
            if row and not (comment and row[0].startswith(comment)):
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num} is not CSV ({error}); download the file again") from error


def read_table(path: Path, columns: Sequence[str], notes: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, column -> cell) of a CSV file with a header that has at least these columns."""
    rows = read_cells(path, notes)
    header = next((row for _, row in rows), [])
    absent = [name for name in columns if name not in header]
    if absent:
        raise InputError(
            f"{path} line 1: no column {', '.join(absent)}; got {', '.join(header)[:SHOWN] or 'an empty file'}; expected "
            f"the columns {', '.join(columns)}: give the file as its publisher ships it"
        )
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"{path} line {line}: {len(row)} cells for {len(header)} columns ({','.join(row)[:SHOWN]}); put cells "
                "that hold a comma in quotes"
            )
        yield line, dict(zip(header, row, strict=True))


def read_json(path: Path, notes: list[str]) -> Any:
    """The value of a JSON file. A key that stands twice in one object is an error: the first value would be lost."""
    text = read_text(path, notes)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f'{path} has the key "{twice}" twice in one object; keep one of them')
        return made

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); download the file again") from error


def read_objects(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The objects of a JSON list, of JSON lines, or of a Parquet file."""
    if path.suffix == ".parquet":
        from calmrl.data.features.feature_set import read_table as read_parquet

        rows: list[dict[str, Any]] = read_parquet(path).to_pylist()
        return rows
    if path.suffix == ".jsonl":
        return [_object(path, number, line) for number, line in read_lines(path, notes)]
    entries = read_json(path, notes)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(
            f"{path} is not a JSON list of objects; got {_described(entries)}; give the file as its publisher ships it"
        )
    return entries


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} line {number} is not JSON ({error})") from error
    if not isinstance(entry, dict):
        raise InputError(f"{path} line {number} is not a JSON object; got {line[:SHOWN]}")
    return entry


def _described(value: Any) -> str:
    """A value that is no list of objects, in short."""
    if isinstance(value, dict):
        return f"an object with the keys {', '.join(list(value)[:5])}"[:SHOWN]
    if isinstance(value, list):
        return f"a list that holds {next(entry for entry in value if not isinstance(entry, dict))!r}"[:SHOWN]
    return repr(value)[:SHOWN]
