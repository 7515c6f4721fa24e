"""Everything that is wrong with a folder, a table of files or features, without encoding or fitting anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calmrl.convention import blocks_of_rows
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.media.collection_problems import MediaProblem
from calmrl.data.media.collections.public_collection import PublicCollection
from calmrl.data.media.decode import Job, decoded
from calmrl.data.media.manifest import SPLITS
from calmrl.data.media.streams import RATE
from calmrl.data.media.unreadable import Unreadable
from calmrl.errors import InputError
from calmrl.workflows.check_collection import Progress, cell_problem, file_cells, take_out
from calmrl.workflows.survey import Survey, survey

FRAMES = 8  # of a film, from all its parts, as `calmrl extract` takes by default


def check_source(
    path: str | Path | PublicCollection,
    *,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """A sentence for every kind of problem, with examples; empty if all is well.

    Every file of a folder, a table or a public collection is decoded. `tell` gets what the source holds.
    """
    seen = survey(path)
    for line in seen.lines():
        tell(line)
    if seen.manifest is None:
        assert not isinstance(path, PublicCollection)
        return _feature_problems(open_features(path))
    bad = _undecodable(seen, progress or (lambda what, done, total: None))
    return take_out(seen.manifest, seen.problems, bad).problems.lines(allowed=False)


def _undecodable(seen: Survey, progress: Progress) -> list[MediaProblem]:
    assert seen.manifest is not None
    cells = file_cells(seen.manifest)
    jobs = [Job(cell, seen.kinds[name], _nothing, FRAMES, RATE) for _, name, cell in cells]
    bad = []
    for done, ((item, name, _), result) in enumerate(zip(cells, decoded(jobs, None, keep=False), strict=True), start=1):
        progress("decode", done, len(cells))
        if isinstance(result, Unreadable):
            bad.append(cell_problem(item, name, result))
    return bad


def _nothing(item: Any) -> np.ndarray:
    """In place of what an encoder does: only decoding is checked."""
    return np.zeros(0)


def _feature_problems(features: FeatureSet) -> list[str]:
    problems = []
    try:
        if features.path is not None and (features.path / "features.json").is_file():
            features.verify()
        else:
            _ = features.ids
    except InputError as error:
        problems.append(str(error))
    for j, name in enumerate(features.names):
        problems += _value_problems(features.z[name], np.asarray(features.present[:, j]), name)
    empty = np.flatnonzero(~np.asarray(features.present).any(axis=1))
    if len(empty):
        problems.append(f"{len(empty)} rows have no modality at all (first: row {empty[0]}); leave them out")
    parts: Any = [] if features.split is None else features.split
    unknown = sorted({str(part) for part in parts if part not in (None, "", *SPLITS)})
    if unknown:
        problems.append(f"the split column holds {', '.join(unknown)}; rows count only as {', '.join(SPLITS)}")
    return problems


def _value_problems(values: np.ndarray, present: np.ndarray, name: str) -> list[str]:
    bad: list[int] = []
    zero = 0
    for start, stop in blocks_of_rows(len(values), 8 * values.shape[1]):
        rows = np.asarray(values[start:stop], dtype=np.float64)
        here = present[start:stop]
        wrong = here & ~np.isfinite(rows).all(axis=1)
        bad += (start + np.flatnonzero(wrong)).tolist()
        zero += int((here & (rows == 0).all(axis=1)).sum())
    problems = []
    if bad:
        problems.append(
            f"{name}: {len(bad)} rows that count as present hold values that are not finite (first: row {bad[0]})"
        )
    if zero:
        problems.append(f"{name}: {zero} rows are zero throughout; a missing modality is NaN, or False in present")
    return problems
