"""An index on disk: a LanceDB database with two tables, so that it can lie in an object store as well as in a folder.

`items`: a row per item. `parts`: name, content and SHA-256 of the files that belong to it (the layout as JSON, the aligner).
`parts` is written last: a database without it is not an index. Every change of the items is one commit, and a reader sees one
version. Every commit leaves a piece of the table and a version of it; `tidy` joins the pieces and drops old versions.

Where all places change at once, the items are written into another table (`items-2`, ...), which the layout names: with the
commit of `parts`, readers see the new places, aligner and layout. The table before stays for those who still read it; the
next change drops it.

| column of items | holds |
|---|---|
| id, text, split, root | texts; several captions are lines of `text` |
| label, labels | labels with commas between them, and as a list |
| paths, stamps | JSON: modality -> file; modality -> its fingerprint [SHA-256, size, time] |
| fingerprint | `ItemRecord.digest`: changes with everything but times |
| certainty, nearness | of its place; its hubness, the mean cosine with its nearest neighbours |
| hub_0, ... | what is taken off its similarity to a query of each modality of layout["hubs"], where hubs are corrected for |
| thumbnail | a small picture |
| has_0, has_1, ... | whether a modality was observed; a text that is the name of a file was not |
| x_0, x_1, ... | other columns of the source |
| f_0, f_1, ... | the features of each modality, of names too; null where there are none |
| segments | of its video, safetensors of `Collection.segments`; the column is there if layout["segments"] is |
| vector | the place in the shared space; null where nothing that is aligned was observed |
| checksum | digests of the other columns, see `calmrl.search.checksums`; indexes of version 1 have none |
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import load, save

from calmrl._support.parsing import parsing
from calmrl._support.places import ITEMS, PARTS, check_index, holds_index, index_of, is_remote
from calmrl.errors import InputError, need
from calmrl.search import checksums
from calmrl.search.collection import SEGMENTS, Collection, ItemRecord

LAYOUT = "index.json"
FORMAT, VERSION = "calmrl.index", 3  # since 3 the layout names the table of items
CHECKSUMS_SINCE = 2
DAMAGED = "if it is damaged, copy or make it again"
PIECES = 32  # of the table of items, at most: a search looks into each of them
KEPT_FOR = timedelta(days=1)  # versions that a reader may still be at
METADATA_BYTES = 16 * 2**20  # kept in memory of the versions and files of an index; LanceDB's own limit is 1 GiB
HOLDS = {"text": pa.string(), "number": pa.float64(), "flag": pa.bool_()}


def reading(path: str | Path) -> AbstractContextManager[None]:
    """Whatever LanceDB raises inside becomes an `InputError` that names the index."""
    return parsing(path, "an index", DAMAGED)


def connect(path: str | Path) -> Any:
    """The database at a path or an address."""
    lancedb = need("lancedb", "search", "An index")
    session = lancedb.Session(metadata_cache_size_bytes=METADATA_BYTES)
    return lancedb.connect(path if is_remote(path) else str(Path(path)), session=session)


def table_names(database: Any) -> list[str]:
    """Names of all its tables."""
    return list(database.list_tables().tables)


def open_tables(path: str | Path) -> tuple[Any, dict[str, bytes], Any]:
    """(the table of items, the parts, the table of these) of an index."""
    check_index(path)
    with reading(path):
        database = connect(path)
        names = table_names(database)
        if PARTS not in names or not any(is_items(name) for name in names):
            own = None if is_remote(path) else index_of(path)
            made = own is not None and holds_index(own)
            what = f"its index is {own}" if made else "make one with calmrl index SOURCE --out NEW"
            raise InputError(f"{path} is not a calmrl index; {what}")
        table = database.open_table(PARTS)
        rows = table.to_arrow().to_pylist()
        for row in rows:
            if row.get("sha256") not in (None, hashlib.sha256(row["content"]).hexdigest()):
                raise InputError(f"{path} is damaged: its part {row['name']} is not what was written; {DAMAGED}")
        parts = {row["name"]: row["content"] for row in rows}
        return database.open_table(_items_named(parts)), parts, table


def folder_at(path: str | Path) -> tuple[int, int] | None:
    """What tells the folder of an index from one that takes its place; None in an object store, and where there is none."""
    if is_remote(path):
        return None
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def is_items(name: str) -> bool:
    """Whether a table holds items, now or before."""
    return name.partition("-")[0] == ITEMS


def _items_named(parts: Mapping[str, bytes]) -> str:
    layout = json.loads(parts[LAYOUT])
    return layout.get(ITEMS, ITEMS) if isinstance(layout, dict) else ITEMS


def next_items(path: str | Path) -> str:
    """A name for the table that takes the place of the items; not one that a run left which was stopped."""
    numbers = [int(name.partition("-")[2] or 1) for name in table_names(connect(path)) if is_items(name)]
    return f"{ITEMS}-{max(numbers) + 1}"


def drop_other_items(path: str | Path, layout: Mapping[str, Any]) -> None:
    """Drop tables of items that were replaced, or that a run left which was stopped."""
    database = connect(path)
    for name in table_names(database):
        if is_items(name) and name != layout.get(ITEMS, ITEMS):
            database.drop_table(name)


def read_layout(parts: Mapping[str, bytes], path: str | Path) -> dict[str, Any]:
    """The layout of an index, checked."""
    with reading(path):
        layout = json.loads(parts[LAYOUT])
    if not isinstance(layout, dict):
        raise InputError(f"{path} is a damaged index: its layout is a {type(layout).__name__}; make it again")
    if layout.get("format") != FORMAT or layout.get("version", 0) > VERSION:
        raise InputError(
            f"{path} has format {layout.get('format')} {layout.get('version')}; this calmrl reads {FORMAT} up to {VERSION}"
        )
    return layout


def write_parts(path: str | Path, parts: Mapping[str, bytes]) -> None:
    """The last step of making an index, or of giving it other parts: one commit."""
    contents = list(parts.values())
    columns = {
        "name": list(parts),
        "content": pa.array(contents, pa.large_binary()),
        "sha256": [hashlib.sha256(content).hexdigest() for content in contents],
    }
    database = connect(path)
    if PARTS not in table_names(database):
        database.create_table(PARTS, pa.table(columns))
    else:
        database.create_table(PARTS, pa.table(columns), mode="overwrite").optimize(cleanup_older_than=KEPT_FOR)


def write_layout(path: str | Path, parts: Mapping[str, bytes], layout: Mapping[str, Any]) -> None:
    """Another layout for the index that has these parts."""
    write_parts(path, {**parts, LAYOUT: json.dumps(layout).encode()})


def schema_of(layout: Mapping[str, Any]) -> pa.Schema:
    """The columns of the items."""
    fields = [pa.field(name, pa.string()) for name in ("id", "text", "label", "split", "root", "paths", "stamps")]
    fields += [pa.field("labels", pa.list_(pa.string())), pa.field("fingerprint", pa.string())]
    fields += [pa.field(name, pa.float32()) for name in ("certainty", "nearness")]
    fields += [pa.field(f"hub_{j}", pa.float32()) for j in range(len(layout.get("hubs", ())))]
    fields.append(pa.field("thumbnail", pa.large_binary()))
    fields += [pa.field(f"has_{j}", pa.bool_()) for j in range(len(layout["modalities"]))]
    fields += [pa.field(column["column"], HOLDS[column["holds"]]) for column in layout["columns"].values()]
    for j, modality in enumerate(layout["modalities"].values()):
        fields.append(pa.field(f"f_{j}", pa.list_(pa.float32(), modality["width"])))
    if layout.get(SEGMENTS):
        fields.append(pa.field(SEGMENTS, pa.large_binary()))
    if layout["width"]:
        fields.append(pa.field("vector", pa.list_(pa.float32(), layout["width"])))
    if layout.get("version", 0) >= CHECKSUMS_SINCE:
        fields.append(pa.field(checksums.COLUMN, pa.binary()))
    return pa.schema(fields)


def columns_of(records: Iterable[ItemRecord]) -> dict[str, dict[str, str]]:
    """Other columns of a source by name: where they are kept, and what they hold."""
    values: dict[str, set[type]] = {}
    for item in records:
        for name, value in item.columns.items():
            values.setdefault(name, set()).update([] if value is None else [type(value)])
    columns = {}
    for number, (name, types) in enumerate(values.items()):
        holds = "flag" if types == {bool} else "number" if types and types <= {int, float} else "text"
        columns[name] = {"column": f"x_{number}", "holds": holds}
    return columns


def batch(collection: Collection, layout: Mapping[str, Any], places: Mapping[str, Any]) -> pa.RecordBatch:
    """Items as rows of the table; `places` are the columns that say where they lie."""
    records = collection.records
    values: dict[str, Any] = {
        "id": [item.id for item in records],
        "text": ["\n".join(item.texts) or None for item in records],
        "label": [", ".join(item.labels) or None for item in records],
        "labels": [list(item.labels) or None for item in records],
        "split": [item.split for item in records],
        "root": [collection.root] * len(records),
        "paths": [json.dumps(dict(item.paths)) for item in records],
        "stamps": [json.dumps(dict(item.fingerprints)) for item in records],
        "fingerprint": [item.digest() for item in records],
        "thumbnail": [collection.thumbnail(row) for row in range(len(records))],
        SEGMENTS: [packed(one) for one in collection.segments or [{}] * len(records)],
        **places,
    }
    for j, (name, modality) in enumerate(layout["modalities"].items()):
        has = collection.has(name)
        values[f"has_{j}"] = has & np.array([item.observed(name) for item in records], bool)
        values[f"f_{j}"] = lists(collection.z.get(name, np.zeros((len(records), modality["width"]))), ~has)
    for name, column in layout["columns"].items():
        values[column["column"]] = [_as(column["holds"], item.columns.get(name)) for item in records]
    return _batch(values, schema_of(layout))


def changed(rows: pa.RecordBatch, layout: Mapping[str, Any], columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Rows of the table with other columns."""
    return _batch({**{name: rows[name] for name in rows.schema.names}, **columns}, schema_of(layout))


def _batch(values: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Columns as rows of the table, with their checksums."""
    own = [field for field in schema if field.name != checksums.COLUMN]
    arrays = [
        values[field.name] if isinstance(values[field.name], pa.Array) else pa.array(values[field.name], field.type)
        for field in own
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(own))
    if len(own) == len(schema):
        return rows
    return pa.RecordBatch.from_arrays([*arrays, checksums.row_checksums(rows)], schema=schema)


def packed(segments: Mapping[str, np.ndarray]) -> bytes | None:
    """Segments of the video of an item as they are stored."""
    return save(dict(segments)) if segments else None


def unpacked(content: bytes | None) -> dict[str, np.ndarray]:
    """The inverse of `packed`."""
    return load(content) if content else {}


def lists(rows: np.ndarray, missing: np.ndarray) -> pa.FixedSizeListArray:
    """Rows as lists of one length; null where missing, or not a number."""
    missing = missing | np.isnan(rows).any(axis=1)
    values = np.where(missing[:, None], np.float32(0), np.asarray(rows, dtype=np.float32))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), rows.shape[1], mask=pa.array(missing))


def _as(holds: str, value: Any) -> Any:
    if value is None or holds == "flag":
        return value
    return float(value) if holds == "number" else str(value)


def create_items(path: str | Path, batches: Iterator[pa.RecordBatch], layout: Mapping[str, Any]) -> Any:
    """The table of items, written in one commit."""
    name = layout.get(ITEMS, ITEMS)
    return connect(path).create_table(name, batches, schema=schema_of(layout), on_bad_vectors="null")


def tidy(table: Any, always: bool = False) -> None:
    """Join the pieces that commits leave, once there are many; `always`, so that new rows join the clusters of an index."""
    if always or table.stats()["fragment_stats"]["num_fragments"] > PIECES:
        table.optimize(cleanup_older_than=KEPT_FOR)
