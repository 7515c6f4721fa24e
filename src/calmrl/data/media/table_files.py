"""The rows of a CSV, TSV, JSONL or Parquet file as dicts, with their line numbers; bad lines become problems."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calmrl.data.media.collection_problems import Problems
from calmrl.errors import InputError

Row = tuple[int, dict[str, Any]]  # line number, column -> value
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
BAD_UTF8 = "surrogateescape"  # bytes that are not UTF-8 survive as lone surrogates, see `is_text`


def read_rows(path: Path, problems: Problems) -> list[Row]:
    """All rows of the file."""
    if not path.is_file():
        raise InputError(f"no manifest at {path}; give a file that ends in {', '.join(TABLE_SUFFIXES)}")
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return list(_delimited(path, "\t" if suffix == ".tsv" else ",", problems))
    if suffix == ".jsonl":
        return list(_json_lines(path, problems))
    if suffix == ".parquet":
        from calmrl.data.features.feature_set import read_table

        return list(enumerate(read_table(path).to_pylist(), start=1))
    raise InputError(f"{path} ends in {path.suffix!r}; a manifest ends in {', '.join(TABLE_SUFFIXES)}")


def is_text(value: str) -> bool:
    """False if the value came from bytes that are not UTF-8."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _delimited(path: Path, delimiter: str, problems: Problems) -> Iterator[Row]:
    content = path.read_bytes().decode("utf-8", BAD_UTF8).removeprefix("\ufeff")
    reader = csv.DictReader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True)
    try:
        names = reader.fieldnames or []
        if len(set(names)) != len(names):
            twice = next(name for name in names if list(names).count(name) > 1)
            raise InputError(f'{path} has two columns called "{twice}"; rename one')
        for row in reader:
            if None in row or None in row.values():
                got = sum(value is not None for key, value in row.items() if key is not None) + len(row.get(None) or [])
                what = f"{got} fields for {len(names)} columns"
                problems.add("wrong number of fields", "row", line=reader.line_num, id=row.get("id") or "", detail=what)
            else:
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{path} line {reader.line_num} is not CSV ({error}); write it with a CSV library") from error


def _json_lines(path: Path, problems: Problems) -> Iterator[Row]:
    content = path.read_bytes().decode("utf-8", BAD_UTF8).removeprefix("\ufeff")
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.add("not JSON", "row", line=number, detail=f"{error}")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            problems.add("not a JSON object", "row", line=number, detail=line[:60])
