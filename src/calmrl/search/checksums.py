"""Checksums of an index, so that a changed byte is an error and not a result.

Of rows: the column `checksum` of the items holds a digest of each of GROUPS, made when the row is made. It belongs to the row
and stays right through later commits, joined pieces and copies, in object stores too. What a search returns is verified with
it; `damaged_items` verifies all there is.

Of files: `checksums.json` holds the SHA-256 of every file of the tables. LanceDB never changes a file, it only writes new ones,
so that this covers what rows cannot: graphs, deletions and the versions of a table. It is written at the end of each change. A
file that is not in it was written by a change that is under way or was stopped; the next change records it. Files in an object
store are left to the checksums of the store.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from calmrl._support.output import FILES, check_header, checksum, new_file, write_header
from calmrl._support.parsing import read_json
from calmrl._support.places import is_remote
from calmrl.errors import InputError

COLUMN = "checksum"
GROUPS = ("description", "columns", "record", "thumbnail", "features", "vector")  # in this order in the column
DESCRIPTION = {
    "text",
    "label",
    "paths",
    "certainty",
    "nearness",
}  # and has_0, hub_0, ...: what a search returns and ranks by
RECORD = {"labels", "stamps", "fingerprint"}
BYTES = 8  # of a digest: for damage, not against forgery
HEADER = "checksums.json"
HINT = "latest_version_hint.json"  # LanceDB writes it anew with every commit, and finds the latest version without it
ROWS = re.compile(r"items(-\d+)?\.lance/data/")  # whose rows have checksums of their own
NAMED = 3  # items in an error


def columns_of(group: str, names: Iterable[str]) -> list[str]:
    """The columns that a digest covers, in a fixed order; the id belongs to each, so that rows cannot be confused."""
    return sorted({"id"} | {name for name in names if _group_of(name) == group})


def _group_of(name: str) -> str:
    if name in DESCRIPTION or name.startswith(("has_", "hub_")):
        return "description"
    if name in RECORD:
        return "record"
    if name.startswith("f_") or name == "segments":
        return "features"
    return name if name in ("thumbnail", "vector", COLUMN) else "columns"


def row_checksums(rows: pa.RecordBatch) -> pa.Array:
    """The column `checksum` of rows that lack it."""
    digests = [_digests(rows, columns_of(group, rows.schema.names)) for group in GROUPS]
    return pa.array([b"".join(row) for row in zip(*digests, strict=True)], pa.binary())


def damaged_rows(rows: pa.Table | pa.RecordBatch, names: Sequence[str], groups: Sequence[str]) -> dict[str, list[str]]:
    """Id -> groups that are not what was written. `names` are all columns of the items; `rows` has those of the groups."""
    written = rows[COLUMN].to_pylist()
    ids = rows["id"].to_pylist()
    wrong: dict[str, list[str]] = {}
    for group in groups:
        place = BYTES * GROUPS.index(group)
        for row, digest in enumerate(_digests(rows, columns_of(group, names))):
            if written[row] is None or written[row][place : place + BYTES] != digest:
                wrong.setdefault(ids[row], []).append(group)
    return wrong


def check_rows(rows: pa.Table, names: Sequence[str], groups: Sequence[str], index: str | Path) -> None:
    """Refuse rows that are not what was written."""
    wrong = damaged_rows(rows, names, groups)
    if wrong:
        listed = ", ".join(f"{id!r:.100} ({', '.join(parts)})" for id, parts in list(wrong.items())[:NAMED])
        raise InputError(
            f"{index} is damaged: of {len(wrong)} items that were asked for, what is stored is not what was written: "
            f"{listed}; see all damage and what to do with: calmrl check {shlex.quote(str(index))}"
        )


def _digests(rows: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> list[bytes]:
    """A digest per row, whatever pieces the rows are stored in."""
    encoded = [_encoded(rows[name]) for name in columns]
    return [hashlib.blake2b(b"".join(values), digest_size=BYTES).digest() for values in zip(*encoded, strict=True)]


def _encoded(column: pa.Array | pa.ChunkedArray) -> list[bytes]:
    """Every value as bytes that begin with their number; "-" where there is none."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values: list[bytes | None]
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        flat = array.values.to_numpy(zero_copy_only=False)[array.offset * width : (array.offset + len(array)) * width]
        there = array.is_valid().to_pylist()
        matrix = np.ascontiguousarray(flat, dtype="<f4").reshape(len(array), width)
        values = [row.tobytes() if valid else None for row, valid in zip(matrix, there, strict=True)]
    elif pa.types.is_large_binary(array.type):
        values = array.to_pylist()
    elif pa.types.is_string(array.type):
        values = [None if text is None else text.encode() for text in array.to_pylist()]
    elif pa.types.is_list(array.type):
        values = [None if value is None else json.dumps(value).encode() for value in array.to_pylist()]
    else:
        values = [None if value is None else repr(value).encode() for value in array.to_pylist()]
    return [b"-" if value is None else b"%d:%b" % (len(value), value) for value in values]


# ---- files


@dataclass(frozen=True)
class Files:
    """How the files of an index compare with their checksums: how many are right, and paths inside it."""

    right: int
    damaged: list[str]
    missing: list[str]
    unrecorded: list[str]


def record(path: str | Path) -> None:
    """Write the checksums of files that have none yet, and drop those of files that LanceDB has removed."""
    if is_remote(path):
        return
    index = Path(path)
    known, files = _recorded(index), _files(index)
    if known.keys() != files.keys():
        body = {FILES: {name: known.get(name) or checksum(file) for name, file in files.items()}}
        with new_file(index / HEADER, force=True) as draft:
            write_header(draft, body)


def compare_files(index: Path, wanted: Callable[[str], bool] = lambda name: True) -> Files:
    """Compare files, or some of them, with their checksums.

    LanceDB removes old files only after it has written new ones: a file is missing if all that are there are recorded.
    """
    known, files = _recorded(index), _files(index)
    unrecorded = sorted(files.keys() - known.keys())
    missing = [] if unrecorded else sorted(known.keys() - files.keys())
    some = [name for name in sorted(known.keys() & files.keys()) if wanted(name)]
    damaged = [name for name in some if _differs(files[name], known[name])]
    return Files(len(some) - len(damaged), damaged, missing, unrecorded)


def check_before_change(index: str | Path) -> None:
    """Refuse to change an index whose graphs, deletions or versions are damaged: what is made from them would get new
    checksums, and look right. Rows keep theirs."""
    if is_remote(index):
        return
    found = compare_files(Path(index), lambda name: not ROWS.match(name))
    if found.damaged or found.missing:
        wrong = ", ".join([*found.damaged, *found.missing][:NAMED])
        raise InputError(
            f"{index} is damaged ({wrong}), so it is not changed; see what to do with: calmrl check {shlex.quote(str(index))}"
        )


def _differs(file: Path, written: str) -> bool:
    try:
        return checksum(file) != written
    except FileNotFoundError:
        return False  # LanceDB has removed it meanwhile


def _recorded(index: Path) -> dict[str, str]:
    header = index / HEADER
    return check_header(header, read_json(header))[FILES] if header.exists() else {}


def _files(index: Path) -> dict[str, Path]:
    return {
        file.relative_to(index).as_posix(): file
        for table in sorted(index.glob("*.lance"))
        for file in sorted(table.rglob("*"))
        if file.is_file() and file.name != HINT
    }
