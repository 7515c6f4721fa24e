"""Search in a LanceDB table: ids, which modalities each row really has, and one vector per row in a shared space.

The vectors are whatever lies in one space for any subset of modalities, for instance `GaussianImputer.embed`:

    write_table("items.lance", data.ids, imputer.embed(data.z, data.present), data.present, list(data.z))
    hits = search_table("items.lance", imputer.embed({"text": text_vectors}), k=10, having=["image"])

Nearness is cosine. Needs the extra `search`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl._support.output import new_directory
from calmrl._support.registry import lookup
from calmrl.convention import Array, check, check_names, to_tensor
from calmrl.errors import InputError, need

TABLE = "items"
HAS = "has_"


@dataclass(frozen=True)
class Hit:
    """One row found: its id, its cosine similarity to the query, and the modalities it really has."""

    id: str
    similarity: float
    modalities: tuple[str, ...]


def write_table(path: str | Path, ids: Sequence[Any], vectors: Array, present: Array, names: Sequence[str]) -> None:
    """Write a table of rows into a new directory.

    Parameters
    ----------
    path : str or Path
        The directory to write; it must not exist.
    ids : sequence
        Distinct, one per row.
    vectors : array (N, d)
        One vector per row in a shared space, NumPy or torch.
    present : bool array (N, k)
        Which of the modalities `names` each row really has, so that imputed content is never taken for observed.
    names : sequence of str
        The modalities.
    """
    lancedb = need("lancedb", "search", "Writing a search table")
    check_names(names)
    rows = _as_float32(vectors)
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
            **{HAS + name: seen[:, j] for j, name in enumerate(names)},
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1]),
        }
    )
    with new_directory(path, advice="") as draft:
        lancedb.connect(draft).create_table(TABLE, table)


def search_table(path: str | Path, queries: Array, k: int = 10, having: Sequence[str] | None = None) -> list[list[Hit]]:
    """The nearest rows of a table, by cosine similarity.

    Parameters
    ----------
    path : str or Path
        What `write_table` wrote.
    queries : array (Q, d)
        Vectors in the space of the table.
    k : int
        How many rows per query.
    having : sequence of str, optional
        Only rows that really have these modalities.

    Returns
    -------
    list of list of Hit
        Per query, nearest first.
    """
    lancedb = need("lancedb", "search", "Searching a table")
    if not Path(path).is_dir():
        raise InputError(f"no search table at {path}; make one with calmrl.search.write_table")
    table = lancedb.connect(path).open_table(TABLE)
    columns = {name.removeprefix(HAS): name for name in table.schema.names if name.startswith(HAS)}
    width = table.schema.field("vector").type.list_size
    rows = _as_float32(queries)
    if rows.shape[1] != width:
        raise InputError(f"queries have width {rows.shape[1]} but the table was written with {width}")
    wanted = " AND ".join(f"`{lookup(columns, name, 'modality')}`" for name in having or [])
    hits_by_query = []
    for row in rows:
        query = table.search(row, vector_column_name="vector").metric("cosine").limit(k)
        hits = (query.where(wanted, prefilter=True) if wanted else query).to_list()
        hits_by_query.append([_hit(hit, columns) for hit in hits])
    return hits_by_query


def _hit(row: Mapping[str, Any], columns: Mapping[str, str]) -> Hit:
    return Hit(row["id"], 1.0 - row["_distance"], tuple(name for name, column in columns.items() if row[column]))


def _as_float32(vectors: Array) -> np.ndarray:
    """Checked as one complete modality of the convention; float32 is what the table stores."""
    check({"vectors": vectors})
    return to_tensor(vectors).detach().cpu().numpy().astype(np.float32)
