"""Everything that is wrong with a folder, a table of files, features or an index, without encoding or fitting anything."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.parsing import quiet_on_error
from calmrl._support.places import is_remote
from calmrl._support.text import beginning, plural
from calmrl.arrays import blocks_of_rows
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.media.documents import content_of
from calmrl.data.media.jobs import Job
from calmrl.data.media.manifest import SPLITS
from calmrl.data.media.public_collections import PublicCollection
from calmrl.data.media.streams import RATE
from calmrl.encoders.registry import default_encoders
from calmrl.errors import InputError, MissingExtraError
from calmrl.protocols import Progress, no_progress
from calmrl.search import checksums, store
from calmrl.sources import INDEX, form_of
from calmrl.workflows.survey import survey, take_out, undecodable_files

ROWS = 2048  # of an index, read at once
LISTED = 50  # damaged items in the command that writes them again; for more, the whole index is as well made again
MAKE_AGAIN = "copy the index again, or make it again with calmrl index SOURCE --out NEW"
FRAMES = 8  # of a video, from all its parts, as `calmrl extract` takes by default


def check_source(
    path: str | Path | PublicCollection,
    *,
    every: bool = False,
    progress: Progress | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """A sentence for every kind of problem, with examples; empty if all is well.

    Every file of a folder, a table or a public collection is decoded, and every item and file of an index is compared with its
    checksum. `report` gets what the source holds, and what is not installed that its default encoders need. With `every`, each
    problem and each file that no item claims has a line of its own, which says what its content is.
    """
    progress = progress or no_progress
    if form_of(path) == INDEX:
        assert isinstance(path, (str, Path))
        return _index_problems(path, progress, report)
    seen = survey(path)
    for line in seen.lines():
        report(line)
    if seen.manifest is None:
        assert seen.features is not None
        return _feature_problems(seen.features)
    kinds = seen.kinds
    bad = undecodable_files(
        seen.manifest, lambda name, file: Job(file, kinds[name], _nothing, FRAMES, RATE), "decode", progress
    )
    try:
        default_encoders(kinds)
    except MissingExtraError as error:
        report(f"nothing can encode it here yet: {error}")
    problems = take_out(seen.manifest, seen.problems, bad).problems
    return problems.every(lambda name: content_of(Path(str(path)) / name)) if every else problems.lines(allowed=False)


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
        rows_have = plural(len(empty), "row has", "rows have")
        problems.append(f"{rows_have} no modality at all (first: row {empty[0]}); leave such rows out")
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
        rows_hold = plural(len(bad), "row that counts as present holds", "rows that count as present hold")
        problems.append(f"{name}: {rows_hold} values that are not finite (first: row {bad[0]})")
    if zero:
        rows_are = plural(zero, "row is", "rows are")
        problems.append(f"{name}: {rows_are} zero throughout; a missing modality is NaN, or False in present")
    return problems


def _index_problems(path: str | Path, progress: Progress, report: Callable[[str], None]) -> list[str]:
    """Its files first: they can be compared even where LanceDB cannot read them."""
    problems = [] if is_remote(path) else _file_problems(Path(path))
    try:
        with quiet_on_error(bool(problems)):
            table, parts, _ = store.open_tables(path)
            store.read_layout(parts, path)
            with store.reading(path):
                names, total = table.schema.names, int(table.count_rows())
        damaged = _damaged_items(table, path, names, total, bool(problems), progress)
    except InputError as error:
        return [*problems, str(error)]
    if damaged:
        count = Counter(group for groups in damaged.values() for group in groups)
        what = ", ".join(f"{group} of {number}" for group, number in count.items())
        named = shlex.quote(str(path))
        few = shlex.join(map(str, damaged)) if len(damaged) <= LISTED and not problems else None
        again = (
            MAKE_AGAIN
            if few is None
            else f"write them again with calmrl remove {named} {few}, then calmrl add {named} SOURCE --removed"
        )
        first = ", ".join(map(repr, list(damaged)[: checksums.NAMED]))
        problems.append(f"{len(damaged)} of {total} items are not what was written ({what}; first: {first}); {again}")
    if not problems:
        report(f"{plural(total, 'item')}, all checksums right")
    if checksums.COLUMN not in names:
        report("its items have no checksums of their own, which a search verifies; make the index again to have them")
    return problems


def _files(names: Sequence[str], path: Path, is_: str, are: str) -> str:
    return plural(len(names), f"file of {path} {is_}", f"files of {path} {are}")


def _file_problems(path: Path) -> list[str]:
    try:
        found = checksums.compare_files(path)
    except InputError as error:
        return [str(error)]
    problems = []
    for names, what in ((found.damaged, "not what was written"), (found.missing, "missing")):
        if names:
            listed = beginning(names, checksums.NAMED)
            problems.append(f"{_files(names, path, 'is', 'are')} {what} ({listed}); {MAKE_AGAIN}")
    if found.unrecorded:
        problems.append(
            f"{_files(found.unrecorded, path, 'has', 'have')} no checksum: of a version without checksums, or of a change "
            f"that is under way or was stopped; to record them: calmrl add {shlex.quote(str(path))} SOURCE"
        )
    return problems


def _damaged_items(
    table: Any, path: str | Path, names: list[str], total: int, known: bool, progress: Progress
) -> dict[str, list[str]]:
    """Id -> what of it is damaged, for all items; they are read even if they have no checksums."""
    damaged: dict[str, list[str]] = {}
    done = 0
    batches = None
    while done < total:
        with quiet_on_error(known), store.reading(path):
            batches = batches or table.search().limit(total).to_batches(batch_size=ROWS)
            rows = next(batches)
            if checksums.COLUMN in names:
                damaged |= checksums.damaged_rows(rows, names, checksums.GROUPS)
        done += len(rows)
        progress(done, total, "compare items with their checksums")
    return damaged
