"""An engine that sends everything through pickle, as a cluster does, and works in this process."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


class PicklingEngine:
    name = "pickling"
    workers = 2

    def __init__(self):
        self.done = []  # the names of the functions, one entry per item

    def map(self, function, items, *shared, device="cpu"):
        job = pickle.dumps((function, shared))
        for item in items:
            work, given = pickle.loads(job)
            self.done.append(function.__name__)
            yield pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(item)), *given)))

    def close(self):
        pass


def save_parquet(features, file, group_rows=100):
    """Features as a Parquet file with a column of lists per modality, null where it is missing."""
    columns = {"id": [str(one) for one in features.ids]}
    for j, (name, array) in enumerate(features.z.items()):
        rows = [list(row) if has else None for row, has in zip(array, features.present[:, j], strict=True)]
        columns[name] = pa.array(rows, pa.list_(pa.from_numpy_dtype(np.asarray(array).dtype)))
    pq.write_table(pa.table(columns), file, row_group_size=group_rows)
