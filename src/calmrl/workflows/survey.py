"""A collection before anything is done with it: what it holds, and what of it cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.text import plural
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.media.jobs import Job, decoded
from calmrl.data.media.manifest import SPLITS, Item, Manifest, drop_empty, modality_in, paths_of
from calmrl.data.media.problems import MediaProblem, Problems, Unreadable, check_file
from calmrl.data.media.public_collections import PublicCollection
from calmrl.data.media.streams import check_stream
from calmrl.data.patterns import patterns
from calmrl.errors import InputError
from calmrl.protocols import Progress
from calmrl.sources import COLLECTION, FEATURES, FOLDER, MANIFEST, Source, open_source

SHOWN = 5  # patterns
DIFFERENT = 0.9  # share of texts that differ, below which texts repeat
FEW_ROWS = 10  # below this a number of test rows is worth a warning


@dataclass
class Survey:
    """A collection as it was met."""

    form: str  # "folder", "manifest", "collection" or "features"
    names: tuple[str, ...]
    present: np.ndarray  # (N, k)
    split: list[str | None]
    labels: list[Any]
    texts: list[list[str]]
    kinds: dict[str, str]  # of raw modalities; empty for features
    manifest: Manifest | None
    problems: Problems
    remarks: list[str] = field(default_factory=list)  # on a public collection: counts against the published ones
    features: FeatureSet | None = None

    def has_split(self) -> bool:
        """Whether the split column gives both training and test rows."""
        return {"train", "test"} <= set(self.split)

    def repeats_texts(self) -> bool:
        """Whether so many texts are the same that a text does not single out its item."""
        every = [text for texts in self.texts for text in texts]
        return len(set(every)) < DIFFERENT * len(every)

    def lines(self) -> list[str]:
        """All of it, for people."""
        n = len(self.present)
        lines = [
            *self.remarks,
            f"{plural(n, 'item')}, {plural(len(self.names), 'modality', 'modalities')}: {', '.join(self.names)}",
        ]
        lines += [f"  {name}: {count} of {n}" for name, count in zip(self.names, self.present.sum(axis=0), strict=True)]
        complete = int(self.present.all(axis=1).sum())
        lines.append(f"missing: {100 * (1 - self.present.mean()):.1f} % of the blocks; {_have(complete)} everything")
        lines += [f"  {_have(row.rows)} {' + '.join(row.modalities) or 'nothing'}" for row in self._patterns()[:SHOWN]]
        hidden = self._patterns()[SHOWN:]
        if hidden:
            lines.append(f"  {_have(sum(row.rows for row in hidden))} {plural(len(hidden), 'other pattern')}")
        return [*lines, self._split_line(complete), *self._text_lines(), *self._label_lines(), *self._warnings()]

    def _patterns(self) -> list[Any]:
        return patterns(self.present, self.names)

    def _split_line(self, complete: int) -> str:
        counts = Counter(part or "none" for part in self.split)
        if not self.has_split():
            given = "" if set(counts) == {"none"} else f" (there is only {', '.join(counts)})"
            return f"split: none{given}; the configs draw one: 60 % train, 10 % val, 30 % test"
        listed = ", ".join(f"{name} {counts[name]}" for name in (*SPLITS, "none") if counts[name])
        whole = sum(part == "test" and row.all() for part, row in zip(self.split, self.present, strict=True))
        return f"split: {listed}; {whole} of the test items have everything"

    def _text_lines(self) -> list[str]:
        every = [text for texts in self.texts for text in texts]
        if not every:
            return []
        different = len(set(every))
        line = f"texts: {len(every)}, of which {different} differ"
        if self.repeats_texts():
            line += "; an item with a repeated text cannot be found by its text alone, so R@1 stays low"
        return [line]

    def _label_lines(self) -> list[str]:
        given = [label for label in self.labels if label is not None]
        if not given:
            return []
        counts = Counter(
            str(part) for label in given for part in (label if isinstance(label, (list, tuple)) else [label])
        )
        least, most = min(counts.values()), max(counts.values())
        sizes = plural(most, "item") if least == most else f"{least:,} to {plural(most, 'item')}"
        return [f"labels: {plural(len(counts), 'class', 'classes')} of {sizes}"]

    def _warnings(self) -> list[str]:
        lines = []
        for j, name in enumerate(self.names):
            together = (self.present[:, j, None] & np.delete(self.present, j, axis=1)).any(axis=1).sum()
            if len(self.names) > 1 and together < FEW_ROWS:
                lines.append(f"warning: only {_have(together)} {name} and something else, too few to align it")
        return lines


def _have(count: int) -> str:
    return plural(count, "item has", "items have")


def survey(source: str | Path | PublicCollection) -> Survey:
    """Look at a folder, a manifest, a public collection, or features.

    Files of a collection that are not there are problems, and their items lack the modality.
    """
    opened = open_source(source, accept=(FOLDER, MANIFEST, FEATURES, COLLECTION))
    if opened.manifest is None:
        assert opened.features is not None
        return _of_features(opened.features)
    if opened.form == COLLECTION:
        take_out(opened.manifest, opened.problems, absent_files(opened.manifest))
    return _of_files(opened, opened.manifest)


def _of_features(features: FeatureSet) -> Survey:
    n = len(features)
    texts = [
        [] if value is None else [value] if isinstance(value, str) else list(value)
        for value in _column(features.text, n)
    ]
    split = [None if value in (None, "") else str(value) for value in _column(features.split, n)]
    labels = _column(features.labels, n)
    present = np.asarray(features.present)
    return Survey(FEATURES, features.names, present, split, labels, texts, {}, None, Problems(), features=features)


def _column(values: Any, n: int) -> list[Any]:
    return [None] * n if values is None else list(values)


def _of_files(opened: Source, manifest: Manifest) -> Survey:
    items = manifest.items
    names = tuple(manifest.kinds)
    present = np.array([[name in item.cells for name in names] for item in items], dtype=bool).reshape(len(items), -1)
    if not len(items):
        raise InputError("\n  ".join(["no item can be used", *opened.problems.lines(allowed=False)]))
    texts = [name for name, kind in manifest.kinds.items() if kind == "text"]
    return Survey(
        opened.form,
        names,
        present,
        [item.columns.get("split") for item in items],
        [item.columns.get("labels") for item in items],
        [[text for name in texts for text in item.cells.get(name, ())] for item in items],
        dict(manifest.kinds),
        manifest,
        opened.problems,
        opened.remarks,
    )


# ---- what can be used


@dataclass
class CheckedCollection:
    """The items of a collection that can be used, and the problems of the others."""

    manifest: Manifest
    problems: Problems

    def lines(self, allowed: bool) -> list[str]:
        """What is there and what is wrong, for people."""
        items = self.manifest.items
        lines = [plural(len(items), "item")]
        for name in self.manifest.kinds:
            here = sum(name in item.cells for item in items)
            bad = sum(problem.scope == "cell" and problem.column == name for problem in self.problems)
            lines.append(f"{name}: {here} present, {len(items) - here} missing" + (f", {bad} unusable" if bad else ""))
        return lines + self.problems.lines(allowed)


def absent_files(manifest: Manifest) -> list[MediaProblem]:
    """Files that are not there, are empty or are folders: seen without opening them."""
    problems = []
    for item, name, cell in file_cells(manifest):
        try:
            check_file(cell)
        except Unreadable as error:
            problems.append(cell_problem(item, name, error, cell))
    return problems


def unplayable_files(manifest: Manifest, workers: int = 1) -> list[MediaProblem]:
    """Videos and sounds that do not open, or lack the stream that is asked for: seen from their headers."""
    cells = [(item, name, cell) for item, name, cell in file_cells(manifest) if modality_in(cell) in ("video", "sound")]

    def problem(entry: tuple[Item, str, str]) -> MediaProblem | None:
        item, name, cell = entry
        try:
            check_stream(cell, "audio" if manifest.kinds[name] == "audio" else "video")
        except Unreadable as error:
            return cell_problem(item, name, error, cell)
        return None

    with ThreadPoolExecutor(workers) as pool:
        return [bad for bad in pool.map(problem, cells) if bad is not None]


def undecodable_files(
    manifest: Manifest, job_of: Callable[[str, str], Job], what: str, progress: Progress, pool: Executor | None = None
) -> list[MediaProblem]:
    """Decode every file, by the job that is made of its modality and path; a problem for each that cannot be."""
    cells, problems = file_cells(manifest), list[MediaProblem]()
    results = decoded([job_of(name, cell) for _, name, cell in cells], pool, keep=False)
    progress(0, len(cells), what)
    for done, ((item, name, cell), result) in enumerate(zip(cells, results, strict=True), start=1):
        progress(done, len(cells), what)
        if isinstance(result, Unreadable):
            problems.append(cell_problem(item, name, result, cell))
    return problems


def file_cells(manifest: Manifest) -> list[tuple[Item, str, str]]:
    """(item, modality, path) of every file, modality by modality."""
    return [
        (item, name, path)
        for name, kind in manifest.kinds.items()
        if kind != "text"
        for item in manifest.items
        for path in paths_of(item.cells.get(name, []))
    ]


def cell_problem(item: Item, name: str, error: Unreadable, path: str) -> MediaProblem:
    """A file that cannot be used, as a problem of its item."""
    return MediaProblem(error.kind, "cell", item.line, item.id, name, error.detail, (path,))


def take_out(manifest: Manifest, problems: Problems, bad: list[MediaProblem]) -> CheckedCollection:
    """Take the bad files out of a collection, and the items that have nothing left."""
    problems.entries += bad
    spoiled = {(problem.id, problem.column, path) for problem in bad for path in problem.names}
    for item in manifest.items:
        for name, cell in list(item.cells.items()):
            files = paths_of(cell)
            good = tuple(path for path in files if (item.id, name, path) not in spoiled)
            if files and not good:
                del item.cells[name]
            elif len(good) < len(files):
                item.cells[name] = good if len(good) > 1 else good[0]
    drop_empty(manifest, problems)
    return CheckedCollection(manifest, problems)


def stop_at_problems(collection: CheckedCollection, report: Path, allow_missing: bool) -> None:
    """Write all problems to a file; raise InputError unless they are allowed and something is left."""
    report.unlink(missing_ok=True)
    serious = len(collection.problems.blocking())
    if serious:
        collection.problems.write(report)
        if not allow_missing:
            raise InputError(
                f"{plural(serious, 'problem')}, all of them listed in {report}; repair them, or pass "
                "`allow_missing=True` to continue without what cannot be used (what was encoded so far is kept)"
            )
    if not collection.manifest.items:
        raise InputError(f"no item is left; see {report}")


def beside(out: Path, name: str) -> Path:
    """A file next to the output: <out>.<name>."""
    return out.with_name(f"{out.name}.{name}")
