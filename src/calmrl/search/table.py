"""Search in a LanceDB table: ids, which modalities each row really has, and one vector per row in a shared space.

The vectors are whatever lies in one space for any subset of modalities, for instance `GaussianImputer.embed`:

    write_table("items.lance", data.ids, imputer.embed(data.z, data.present), data.present, list(data.z))
    hits = search_table("items.lance", imputer.embed({"text": text_vectors}), k=10, having=["image"])

Nearness is cosine. Needs the extra `search`. `calmrl.Index` does more: it encodes, aligns, filters, and can be changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl._support.output import new_directory
from calmrl._support.parsing import parsing
from calmrl._support.registry import lookup
from calmrl.arrays import Array, check, check_names, to_tensor
from calmrl.errors import InputError, need
from calmrl.search.hits import Hit

TABLE = "items"
HAS = "has_"  # has_0, has_1, ... : one column per modality; their names are in the schema's metadata
NAMES = b"calmrl.modalities"
DAMAGED = "if it is damaged, copy or write it again"


def write_table(path: str | Path, ids: Sequence[Any], vectors: Array, present: Array, names: Sequence[str]) -> None:
    """Write a table of rows into a new directory.

    Parameters
    ----------
    path : str or Path
        The directory to write; it must not exist.
    ids : sequence
        Distinct, one per row.
    vectors : array (N, d)
        One vector per row in a shared space, NumPy or torch; none of them zero, since a zero vector has no direction.
    present : bool array (N, k)
        Which of the modalities `names` each row really has, so that imputed content is never taken for observed.
    names : sequence of str
        The modalities.
    """
    lancedb = need("lancedb", "search", "Writing a search table")
    check_names(names)
    rows = directions(vectors, "vectors")
    seen = to_tensor(present).cpu().numpy()
    if seen.dtype != bool or seen.shape != (len(rows), len(names)):
        raise InputError(
            f"present must be bool of shape ({len(rows)}, {len(names)}), a row per vector and a column per modality "
            f"({', '.join(names)}); got {seen.dtype} {seen.shape}"
        )
    listed = [str(name) for name in ids]
    if len(listed) != len(rows) or len(set(listed)) != len(listed):
        raise InputError(f"ids must be distinct, one per vector ({len(rows)}); got {len(set(listed))} distinct ids")
    table = pa.table(
        {
            "id": listed,
            **{f"{HAS}{j}": seen[:, j] for j in range(len(names))},
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1]),
        }
    ).replace_schema_metadata({NAMES: json.dumps(list(names))})
    with new_directory(path, advice="") as draft:
        lancedb.connect(draft).create_table(TABLE, table)


def search_table(path: str | Path, queries: Array, k: int = 10, having: Sequence[str] | None = None) -> list[list[Hit]]:
    """The nearest rows of a table, by cosine similarity.

    Parameters
    ----------
    path : str or Path
        What `write_table` wrote.
    queries : array (Q, d)
        Vectors in the space of the table, none of them zero.
    k : int
        How many rows per query, at least 1.
    having : sequence of str, optional
        Only rows that really have these modalities.

    Returns
    -------
    list of list of Hit
        Per query, nearest first.
    """
    lancedb = need("lancedb", "search", "Searching a table")
    check_k(k)
    if not (Path(path) / f"{TABLE}.lance").is_dir():
        raise InputError(f"no search table at {path}; make one with calmrl.search.write_table")
    with parsing(path, "a search table", DAMAGED):
        table = lancedb.connect(path).open_table(TABLE)
    if NAMES not in (table.schema.metadata or {}):
        raise InputError(f"{path} is no table of calmrl.search.write_table; an index is opened with calmrl.Index.open")
    with parsing(path, "a search table", DAMAGED):
        columns = {name: f"{HAS}{j}" for j, name in enumerate(json.loads(table.schema.metadata[NAMES]))}
        width = table.schema.field("vector").type.list_size
    rows = directions(queries, "queries")
    if rows.shape[1] != width:
        raise InputError(f"queries have width {rows.shape[1]} but the table was written with {width}")
    wanted = " AND ".join(lookup(columns, name, "modality") for name in having or [])
    hits_by_query = []
    for row in rows:
        query = table.search(row, vector_column_name="vector").metric("cosine").limit(int(k))
        with parsing(path, "a search table", DAMAGED):
            hits = (query.where(wanted, prefilter=True) if wanted else query).to_list()
        hits_by_query.append([_hit(hit, columns) for hit in hits])
    return hits_by_query


def check_k(k: Any) -> None:
    """How many hits: a whole number from 1 on."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1:
        raise InputError(f"k is how many items to return, a whole number from 1 on; got {k!r}")


def directions(vectors: Array, what: str) -> np.ndarray:
    """Rows as float32, which the table stores; each must be finite there and have a direction."""
    check({what: vectors}, any_size=True)  # a direction has no size
    with np.errstate(over="ignore"):
        rows = to_tensor(vectors).detach().cpu().numpy().astype(np.float32)
    if not np.isfinite(rows).all():
        row = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise InputError(f"{what}: row {row} has values too large for float32; divide all vectors by a constant")
    with np.errstate(over="ignore"):
        lengths = np.square(rows).sum(axis=1)
    if not ((lengths > 0) & np.isfinite(lengths)).all():
        row = int(np.flatnonzero(~((lengths > 0) & np.isfinite(lengths)))[0])
        reason = "is zero (or too small for float32)" if lengths[row] == 0 else "is too long for float32"
        raise InputError(f"{what}: row {row} {reason}, so it has no direction and no cosine; leave it out or rescale")
    return rows


def _hit(row: Mapping[str, Any], columns: Mapping[str, str]) -> Hit:
    return Hit(
        row["id"], 1.0 - row["_distance"], modalities=tuple(name for name, column in columns.items() if row[column])
    )
