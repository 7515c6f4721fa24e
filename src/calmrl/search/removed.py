"""Items that were removed on purpose although their files are still there: neither new to `growth` nor to `add`.

They are rows (root, id, paths) of a third table of the index, which the first removal makes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from calmrl._support.parsing import parsing
from calmrl.search.store import DAMAGED, connect, table_names
from calmrl.search.where import quote

REMOVED = "removed"
SCHEMA = pa.schema([pa.field(name, pa.string()) for name in ("root", "id", "paths")])


def removed_items(path: str | Path) -> dict[str, dict[str, list[str]]]:
    """Root -> id of a removed item -> its files."""
    items: dict[str, dict[str, list[str]]] = {}
    with parsing(path, "an index", DAMAGED):
        table = _table(path)
        for row in [] if table is None else table.to_arrow().to_pylist():
            items.setdefault(row["root"], {})[row["id"]] = list(json.loads(row["paths"]).values())
    return items


def remember(path: str | Path, rows: Iterable[dict[str, Any]]) -> None:
    """Rows of `items` (root, id, paths) that are about to be removed."""
    content = pa.Table.from_pylist([{name: row[name] for name in SCHEMA.names} for row in rows], SCHEMA)
    table = _table(path)
    if table is None:
        connect(path).create_table(REMOVED, content)
    else:
        table.merge_insert(["root", "id"]).when_matched_update_all().when_not_matched_insert_all().execute(content)


def forget(path: str | Path, root: str, ids: Sequence[str]) -> None:
    """These items are in the index again."""
    table = _table(path)
    if table is not None and ids:
        table.delete(f"root = {quote(root)} AND id IN ({', '.join(map(quote, ids))})")


def _table(path: str | Path) -> Any:
    database = connect(path)
    return database.open_table(REMOVED) if REMOVED in table_names(database) else None
