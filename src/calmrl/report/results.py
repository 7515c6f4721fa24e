"""results.json: its rows, what is known of them, and means over seeds with what is needed to judge them.

Several files are merged into one `Results`; two values for the same measurement are an error.
"""

import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from calmrl._support.parsing import read_json
from calmrl._support.text import fixed, plural
from calmrl.data.features.feature_set import ROW
from calmrl.data.media.problems import skipped_words
from calmrl.errors import InputError
from calmrl.metrics.registry import describe
from calmrl.metrics.significance import mean_interval
from calmrl.report.style import OURS, base_method, is_ours


def decimals(metric: str, values: Iterable[float]) -> int:
    """So many that the largest of the values shows three digits, for metrics that are not percentages."""
    least = describe(metric).decimals
    largest = max((abs(value) for value in values), default=0.0)
    return max(least, 2 - math.floor(math.log10(largest))) if least > 1 and largest > 0 else least


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, half the width of its 95 % interval (None for one seed), and the items behind every value."""

    mean: float
    half: float | None
    seeds: int
    fewest: int
    most: int
    values: tuple[float, ...]

    @property
    def low(self) -> float | None:
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        return None if self.half is None else self.mean + self.half

    @property
    def items(self) -> str:
        """250, or 240 to 250 when the seeds differ."""
        return f"{self.fewest:,}" if self.fewest == self.most else f"{self.fewest:,} to {self.most:,}"

    def text(self, decimals: int) -> str:
        """27.3 ± 0.8; a single seed has no ±."""
        return fixed(self.mean, decimals) + ("" if self.half is None else f" ± {fixed(self.half, decimals)}")


def estimate(values: Sequence[float], items: Iterable[int]) -> Estimate:
    """The mean of one value per seed, each measured on so many items."""
    array, sizes = np.asarray(values, dtype=float), list(items)
    mean, half = float(array.mean()), mean_interval(array).half
    return Estimate(mean, half, len(array), min(sizes), max(sizes), tuple(array.tolist()))


def skipped_sentence(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Skipped: clips: vision of 37 (of 1,000 listed items). Empty if nothing is.

    Parameters
    ----------
    counts : mapping of str to mapping
        Data set -> its counts, as `calmrl.data.media.problems` makes them.
    """
    parts = [f"{name}: {words}" for name, some in counts.items() if (words := skipped_words(some))]
    return f"Skipped: {'; '.join(parts)}." if parts else ""


FILE = "results.json"


class ResultRow(BaseModel):
    """One measurement: a value of a metric, on `n` items."""

    model_config = ConfigDict(frozen=True)
    dataset: str
    setting: str = ""
    method: str
    seed: int
    task: str
    metric: str
    value: FiniteFloat
    n: NonNegativeInt
    rate: float | None = Field(default=None, ge=0, le=1)
    complete: NonNegativeInt | None = None
    seconds: float | None = Field(default=None, ge=0)

    @property
    def place(self) -> tuple[str, str]:
        """What the methods are compared on: dataset and setting."""
        return self.dataset, self.setting


class MethodInfo(BaseModel):
    """What is known of a method. Without a word on it, the name decides."""

    about: str = ""
    ours: bool | None = None
    ideal: bool | None = None


class DatasetInfo(BaseModel):
    """What is known of a dataset."""

    rows: NonNegativeInt
    modalities: dict[str, int]
    source: str = ""
    left_out: dict[str, NonNegativeInt] = {}  # of listed test items, see `calmrl.data.media.problems`


class PatternRows(BaseModel):
    """Rows that have exactly these modalities."""

    has: list[str]
    rows: NonNegativeInt


class TrainingRows(BaseModel):
    """How complete the training rows of a setting are, as `calmrl.data.patterns.Completeness` says."""

    rows: NonNegativeInt
    missing: float
    complete: float
    pairs: float
    rarest: NonNegativeInt


class CurvePoint(BaseModel):
    """A point of a training curve."""

    setting: str = ""
    method: str
    seed: int
    step: float
    loss: float | None = None
    val: float | None = None


class PointMap(BaseModel):
    """Points in the plane; four lists of the same length."""

    x: list[FiniteFloat]
    y: list[FiniteFloat]
    modality: list[str]
    item: list[int | str]


class FoundItem(BaseModel):
    """An item found for a query: whether it is the query's own, or counts as found without being so.

    `picture` and `sound` are paths from the directory of results.json, or data URIs.
    """

    caption: str = ""
    id: int | str = ""
    own: bool = False
    relevant: bool = False
    picture: str | None = None
    sound: str | None = None


class Neighbours(BaseModel):
    """A query, what was found for it, and the rank of the first item that counts: its own, or one with its `relevant_by`."""

    method: str
    task: str
    query: str
    rank: int
    found: list[FoundItem]
    relevant_by: str = ROW
    picture: str | None = None
    sound: str | None = None


class Meta(BaseModel):
    """What is known about the rows."""

    command: str = ""
    config: dict[str, Any] = {}
    version: str = ""
    datasets: dict[str, DatasetInfo] = {}
    settings: dict[str, str] = {}
    methods: dict[str, MethodInfo] = {}
    patterns: dict[str, list[PatternRows]] = {}
    training: dict[str, TrainingRows] = {}
    curves: list[CurvePoint] = []
    maps: dict[str, PointMap] = {}
    neighbours: list[Neighbours] = []
    remarks: list[str] = []
    words: list[str] = []
    notes: list[str] = []


class Content(BaseModel):
    rows: list[ResultRow]
    meta: Meta = Meta()


@dataclass(frozen=True)
class ResultsFile:
    """One results.json: a name to tell it from others, where it is, and what it says about its rows."""

    name: str
    folder: Path
    meta: Meta


@dataclass(frozen=True)
class Results:
    """All rows, what is known of methods, settings and datasets, and the files they came from."""

    rows: list[ResultRow]
    sources: list[ResultsFile]
    methods: dict[str, MethodInfo]
    settings: dict[str, str]
    datasets: dict[str, DatasetInfo]

    def ours(self, method: str) -> bool:
        """Whether the method is this project's."""
        flag = self.methods.get(method, MethodInfo()).ours
        return is_ours(method) if flag is None else flag

    def marked(self, method: str) -> str:
        """The name of the method, with a mark if it is this project's."""
        return OURS * self.ours(method) + method

    def ideal(self, method: str) -> bool:
        """Whether the method saw everything, so that it bounds the others and does not compete."""
        flag = self.methods.get(method, MethodInfo()).ideal
        return base_method(method)[1] == "ideal" if flag is None else flag

    def ideal_last(self, methods: Sequence[str]) -> list[str]:
        """The same order, but those that saw everything after the others."""
        return sorted(methods, key=self.ideal)

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len({row.seed for row in self.rows})

    @property
    def left_out(self) -> str:
        """What the numbers do without; empty if nothing is left out."""
        return skipped_sentence({name: data.left_out for name, data in self.datasets.items()})

    def places(self, rows: Iterable[ResultRow]) -> list[tuple[str, str]]:
        """(dataset, setting), in the order of the rows."""
        return list(dict.fromkeys(row.place for row in rows))

    def by_place(self, rows: Sequence[ResultRow]) -> list[tuple[str, list[ResultRow]]]:
        """(name of a place, its rows), in the order of the rows."""
        places = self.places(rows)
        return [(self.place_name(place), [row for row in rows if row.place == place]) for place in places]

    @property
    def training(self) -> dict[str, TrainingRows]:
        """Name of a place -> how complete its training rows are, where that is known."""
        return {name: rows for source in self.sources for name, rows in source.meta.training.items()}

    def chances(self, metric: str) -> dict[tuple[tuple[str, str], str], float]:
        """(place, task) -> what a random order reaches by this metric, the mean over seeds."""
        levels: dict[tuple[tuple[str, str], str], list[float]] = {}
        for row in self.rows:
            if row.metric == f"chance {metric}":
                levels.setdefault((row.place, row.task), []).append(row.value)
        return {where: sum(values) / len(values) for where, values in levels.items()}

    def place_name(self, place: tuple[str, str]) -> str:
        """The shortest name that tells a place from the others."""
        dataset, setting = place
        if not setting:
            return dataset
        return setting if len({row.dataset for row in self.rows}) == 1 else f"{dataset}, {setting}"


def group(rows: Iterable[ResultRow], key: Callable[[ResultRow], Hashable]) -> dict[Any, Estimate]:
    """Key -> mean over seeds (a seed measured several times counts once, with its mean)."""
    grouped: dict[Hashable, dict[int, list[ResultRow]]] = {}
    for row in rows:
        grouped.setdefault(key(row), {}).setdefault(row.seed, []).append(row)
    return {
        name: estimate(
            [sum(row.value for row in same) / len(same) for _, same in sorted(seeds.items())],
            [row.n for same in seeds.values() for row in same],
        )
        for name, seeds in grouped.items()
    }


def read_results(folders: Sequence[str | Path]) -> Results:
    """Read and merge results.json of every directory (or the file itself).

    Examples
    --------
    >>> results = read_results(["run-1", "run-2"])  # doctest: +SKIP
    """
    paths = [path / FILE if path.is_dir() else path for path in map(Path, folders)]
    return results_of({path: _read(path) for path in paths})


def results_of(contents: Mapping[Path, Any]) -> Results:
    """Check and merge the contents of results.json files, by path."""
    if not contents:
        raise InputError(f"no directory given; name one or several that hold {FILE}")
    files = {path: _checked(path, content) for path, content in contents.items()}
    rows = _merge_rows([(path, file.rows) for path, file in files.items()])
    if not rows:
        raise InputError(f"{next(iter(files))} has no rows; there is nothing to report")
    names = _names(list(files))
    return Results(
        rows,
        [ResultsFile(name, path.parent, file.meta) for name, (path, file) in zip(names, files.items(), strict=True)],
        _merge("method", {path: file.meta.methods for path, file in files.items()}),
        _merge("setting", {path: file.meta.settings for path, file in files.items()}),
        _merge("dataset", {path: file.meta.datasets for path, file in files.items()}),
    )


def _read(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a directory that holds {FILE}")
    return read_json(path)


def _checked(path: Path, content: Any) -> Content:
    if not isinstance(content, dict) or "rows" not in content:
        got = f"the keys {sorted(content)}" if isinstance(content, dict) else type(content).__name__
        raise InputError(f'{path} should hold {{"rows": [...], "meta": {{...}}}}; got {got}')
    try:
        file = Content.model_validate(content)
    except ValidationError as wrong:
        lines = [
            f"  {'.'.join(map(str, e['loc']))}: {e['msg'].lower()}; got {_shown(e['input'])}"
            for e in wrong.errors()[:8]
        ]
        more = wrong.error_count() - len(lines)
        lines += [f"  and {more} more"] if more else []
        raise InputError("\n".join([f"{path}: {plural(wrong.error_count(), 'mistake')}", *lines])) from wrong
    for method, points in file.meta.maps.items():
        sizes = {name: len(getattr(points, name)) for name in ("x", "y", "modality", "item")}
        if len(set(sizes.values())) > 1:
            raise InputError(f"{path}: the map of {method} needs lists of the same length; got {sizes}")
    return file


def _merge_rows(files: Sequence[tuple[Path, Sequence[ResultRow]]]) -> list[ResultRow]:
    """All rows once; the same measurement with two values is an error."""
    seen: dict[Hashable, tuple[Path, ResultRow]] = {}
    for path, rows in files:
        for row in rows:
            key = (*row.place, row.method, row.seed, row.task, row.metric, row.rate)
            before = seen.setdefault(key, (path, row))
            if (before[1].value, before[1].n) != (row.value, row.n):
                what = ", ".join(str(part) for part in key[:-1] if part != "")
                raise InputError(
                    f"two values for the same measurement ({what}): {before[1].value:g} (n={before[1].n}) in "
                    f"{before[0]}, {row.value:g} (n={row.n}) in {path}; report them separately, or give the runs "
                    "different names of method or setting"
                )
    return _name_rates([row for _, row in seen.values()])


def _name_rates(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """A setting measured at several missing rates is several settings: the rate joins its name."""
    rates: dict[tuple[str, str], set[float | None]] = {}
    for row in rows:
        rates.setdefault(row.place, set()).add(row.rate)
    return [
        row.model_copy(update={"setting": f"{row.setting} {row.rate:g}".strip()})
        if row.rate is not None and len(rates[row.place]) > 1
        else row
        for row in rows
    ]


def _merge(what: str, parts: Mapping[Path, Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    origin: dict[str, Path] = {}
    for path, part in parts.items():
        for name, info in part.items():
            if merged.setdefault(name, info) != info:
                raise InputError(
                    f'{what} "{name}" is described differently in {origin[name]} ({merged[name]}) and {path} ({info}); '
                    "report them separately, or give them different names"
                )
            origin.setdefault(name, path)
    return merged


def _names(paths: Sequence[Path]) -> list[str]:
    """The directories' own names, with as many parents as tell them apart."""
    folders = [path.resolve().parent.parts for path in paths]
    for depth in range(1, max(map(len, folders)) + 1):
        names = ["/".join(parts[-depth:]) for parts in folders]
        if len(set(names)) == len(names):
            return names
    return [path.resolve().name for path in paths]  # several files of one directory


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
