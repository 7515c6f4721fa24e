"""What cannot be used of a collection: taken out, counted and listed."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from calmrl._support.wording import plural
from calmrl.data.features.feature_set import FeatureSet, open_features, read_table
from calmrl.data.features.formats import FORMATS
from calmrl.data.media.folder import read_folder
from calmrl.data.media.manifest import (
    SPLITS,
    TABLE_SUFFIXES,
    Item,
    Manifest,
    build,
    drop_empty,
    guess_kinds,
    modality_of,
    read_rows,
)
from calmrl.data.media.problems import MediaProblem, Problems, Unreadable, check_file
from calmrl.data.media.public_collections import PublicCollection
from calmrl.data.media.streams import check_stream
from calmrl.data.patterns import patterns
from calmrl.errors import InputError


@dataclass
class CheckedCollection:
    """The items of a collection that can be used, and the problems of the others."""

    manifest: Manifest
    problems: Problems

    def lines(self, allowed: bool) -> list[str]:
        """What is there and what is wrong, for people."""
        items = self.manifest.items
        lines = [f"{len(items)} items"]
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
            problems.append(cell_problem(item, name, error))
    return problems


def unplayable_files(manifest: Manifest, workers: int = 1) -> list[MediaProblem]:
    """Films and sounds that do not open, or lack the stream that is asked for: seen from their headers."""
    cells = [(item, name, cell) for item, name, cell in file_cells(manifest) if modality_of(cell) in ("video", "sound")]

    def problem(entry: tuple[Item, str, str]) -> MediaProblem | None:
        item, name, cell = entry
        try:
            check_stream(cell, "audio" if manifest.kinds[name] == "audio" else "video")
        except Unreadable as error:
            return cell_problem(item, name, error)
        return None

    with ThreadPoolExecutor(workers) as pool:
        return [bad for bad in pool.map(problem, cells) if bad is not None]


def file_cells(manifest: Manifest) -> list[tuple[Item, str, str]]:
    """(item, modality, path) of every file, modality by modality."""
    return [
        (item, name, item.cells[name])
        for name, kind in manifest.kinds.items()
        if kind != "text"
        for item in manifest.items
        if name in item.cells
    ]


def cell_problem(item: Item, name: str, error: Unreadable) -> MediaProblem:
    """A file that cannot be used, as a problem of its item."""
    return MediaProblem(error.kind, "cell", item.line, item.id, name, error.detail)


def take_out(manifest: Manifest, problems: Problems, bad: list[MediaProblem]) -> CheckedCollection:
    """Take the bad cells out of a collection, and the items that have nothing left."""
    problems.entries += bad
    spoiled = {(problem.id, problem.column) for problem in bad}
    for item in manifest.items:
        item.cells = {name: cell for name, cell in item.cells.items() if (item.id, name) not in spoiled}
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
        lines = [*self.remarks, f"{n} items, {len(self.names)} modalities: {', '.join(self.names)}"]
        lines += [f"  {name}: {count} of {n}" for name, count in zip(self.names, self.present.sum(axis=0), strict=True)]
        complete = int(self.present.all(axis=1).sum())
        lines.append(
            f"missing: {100 * (1 - self.present.mean()):.1f} % of the blocks; {complete} items have everything"
        )
        lines += [
            f"  {row.rows} items have {' + '.join(row.modalities) or 'nothing'}" for row in self._patterns()[:SHOWN]
        ]
        hidden = self._patterns()[SHOWN:]
        if hidden:
            lines.append(f"  {sum(row.rows for row in hidden)} items have one of {len(hidden)} other patterns")
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
        return [f"labels: {len(counts)} classes of {min(counts.values())} to {max(counts.values())} items"]

    def _warnings(self) -> list[str]:
        lines = []
        for j, name in enumerate(self.names):
            together = (self.present[:, j, None] & np.delete(self.present, j, axis=1)).any(axis=1).sum()
            if len(self.names) > 1 and together < FEW_ROWS:
                lines.append(f"warning: only {together} items have {name} and something else, too few to align it")
        return lines


def survey(source: str | Path | PublicCollection) -> Survey:
    """Look at a folder, a manifest, a public collection, or features."""
    if isinstance(source, PublicCollection):
        return _of_collection(source)
    path = Path(source)
    if not path.exists():
        raise InputError(f"{path} does not exist; give a folder of files, a table of files, or features")
    if _is_features(path):
        return _of_features(open_features(path))
    problems = Problems()
    if path.is_dir():
        return _of_manifest("folder", read_folder(path, problems), problems)
    if path.suffix.lower() not in TABLE_SUFFIXES:
        known = ", ".join(dict.fromkeys([*TABLE_SUFFIXES, *FORMATS]))
        raise InputError(f"{path} ends in {path.suffix!r}; give a folder, or a file that ends in {known}")
    return _of_manifest("manifest", read_table_of_files(path, problems), problems)


def read_table_of_files(path: Path, problems: Problems) -> Manifest:
    """A manifest whose encoders are not chosen yet: what its columns are is judged by what they hold."""
    rows = read_rows(path, problems)
    kinds = guess_kinds(row for _, row in rows)
    if not kinds:
        columns = ", ".join(dict.fromkeys(str(name) for _, row in rows for name in row))
        raise InputError(
            f"{path} has no column that is called text or holds names of pictures, films or sounds; it has {columns}"
        )
    return build(rows, kinds, problems, root=path.parent)


def _of_collection(collection: PublicCollection) -> Survey:
    """A public collection; files that are not there are problems, and their items lack the modality."""
    problems = Problems()
    content = collection.read()
    manifest = build(content.rows, content.kinds, problems, root=Path())
    take_out(manifest, problems, absent_files(manifest))
    seen = _of_manifest("collection", manifest, problems)
    seen.remarks = [content.counts, *content.notes]
    return seen


def _is_features(path: Path) -> bool:
    if path.is_dir():
        return (path / "features.json").is_file() or any(path.glob("*.npy"))
    if path.suffix == ".parquet":
        return _has_vectors(path)
    return path.suffix in FORMATS


def _has_vectors(path: Path) -> bool:
    """Whether a Parquet file has a column of lists of floats."""
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    columns = [field.type for field in read_table(path).schema if any(test(field.type) for test in lists)]
    return any(pa.types.is_floating(column.value_type) for column in columns)


def _of_features(features: FeatureSet) -> Survey:
    n = len(features)
    texts = [
        [] if value is None else [value] if isinstance(value, str) else list(value)
        for value in _column(features.text, n)
    ]
    split = [None if value in (None, "") else str(value) for value in _column(features.split, n)]
    labels = _column(features.labels, n)
    return Survey("features", features.names, np.asarray(features.present), split, labels, texts, {}, None, Problems())


def _column(values: Any, n: int) -> list[Any]:
    return [None] * n if values is None else list(values)


def _of_manifest(form: str, manifest: Manifest, problems: Problems) -> Survey:
    items = manifest.items
    names = tuple(manifest.kinds)
    present = np.array([[name in item.cells for name in names] for item in items], dtype=bool).reshape(len(items), -1)
    if not len(items):
        raise InputError("\n  ".join(["no item can be used", *problems.lines(allowed=False)]))
    texts = [name for name, kind in manifest.kinds.items() if kind == "text"]
    return Survey(
        form,
        names,
        present,
        [item.columns.get("split") for item in items],
        [item.columns.get("labels") for item in items],
        [[text for name in texts for text in item.cells.get(name, ())] for item in items],
        dict(manifest.kinds),
        manifest,
        problems,
    )
