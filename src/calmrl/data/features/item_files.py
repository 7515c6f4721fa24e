"""Which file a row of features was made from: the columns `file.MODALITY`, as paths from the feature directory."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from calmrl.data.features.feature_set import FeatureSet

FILE = "file."


def file_columns(cells: Iterable[Mapping[str, str]], out: Path) -> dict[str, list[str | None]]:
    """The columns `file.MODALITY` of items whose cells are paths; None where an item has no such file.

    Examples
    --------
    >>> file_columns([{"image": "photos/a.png"}, {}], Path("work/features"))
    {'file.image': ['../../photos/a.png', None]}
    """
    rows = list(cells)
    names = dict.fromkeys(name for row in rows for name in row)
    start = out.absolute()
    return {
        FILE + name: [Path(os.path.relpath(row[name], start)).as_posix() if name in row else None for row in rows]
        for name in names
    }


def files_of(features: FeatureSet, row: int) -> dict[str, Path]:
    """Modality -> the file that a row was made from, if the features record files and these still exist."""
    if features.path is None:
        return {}
    paths = {}
    for column in features.meta.column_names:
        cell = features.meta[column][row].as_py() if column.startswith(FILE) else None
        if cell is not None and (features.path / cell).is_file():
            paths[column.removeprefix(FILE)] = features.path / cell
    return paths
