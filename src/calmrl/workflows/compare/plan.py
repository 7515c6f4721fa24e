"""What a comparison will do, before anything is trained: its jobs, and what to know about the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calmrl.config import CompareConfig
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.relevance import ROW, relevance_of
from calmrl.errors import InputError
from calmrl.metrics.remarks import FEW
from calmrl.training.methods import find_method
from calmrl.workflows.build import parts_of
from calmrl.workflows.compare.rows import anchor_of, features_of, method_of, needs_anchor


class Job(NamedTuple):
    """One cell of a comparison."""

    dataset: str
    setting: str
    method: str
    seed: int

    def __str__(self) -> str:
        return f"data set {self.dataset}, setting {self.setting}, method {self.method}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """The jobs, and sentences about what is left out, which rule was used, and what numbers can mean."""

    jobs: list[Job]
    notes: list[str]


def methods_of(config: CompareConfig) -> list[str]:
    """The methods, each also with every swept value: "calmrl objective.temperature=0.1"."""
    swept = [f"{m} {key}={value}" for key, values in config.sweep.items() for m in config.methods for value in values]
    return [*config.methods, *swept]


def jobs_of(config: CompareConfig) -> list[Job]:
    """Every (data set, setting, method, seed), in the order of the config; swept values are methods of their own."""
    return [
        Job(dataset, setting, method, seed)
        for seed in config.seeds
        for dataset in config.names
        for setting in config.only(dataset).settings
        for method in methods_of(config)
    ]


def place_of(config: CompareConfig, dataset: str, setting: str) -> str:
    """The name of a data set and setting: the setting alone where there is one data set."""
    return setting if len(config.names) == 1 else f"{dataset}, {setting}"


def plan(config: CompareConfig) -> Plan:
    """The jobs of a comparison. "ideal" is among them only for data whose training rows lack nothing.

    Data on which nothing can be compared are an error that names them.
    """
    jobs, notes = jobs_of(config), []
    for dataset in config.names:
        part = config.only(dataset)
        try:
            split = _splits(part)
            notes += [f"{dataset}: {note}" for note in _notes(part, split)]
        except InputError as error:
            raise InputError(f"data set {dataset}: {error}") from error
        ideals = [name for name in methods_of(config) if method_of(name).ideal]
        share, rows = _missing(part, split)
        if share and ideals:
            jobs = [job for job in jobs if job.dataset != dataset or job.method not in ideals]
            notes.append(
                f"{dataset}: {', '.join(ideals)} is left out; it stands for complete data, but {100 * share:.1f} % of the "
                "blocks of the training rows are missing before anything is hidden."
            )
        elif ideals:
            notes.append(f"{dataset}: {', '.join(ideals)} trains on {rows} rows (at most), all of them complete.")
    if not jobs:
        raise InputError("no method is left to compare; add one that may lack modalities, such as calmrl")
    return Plan(jobs, notes)


def _features(part: CompareConfig) -> tuple[FeatureSet, list[str]]:
    assert part.source is not None
    features = features_of(part.source.model_dump_json())
    names = part.modalities or list(features.names)
    for name in names:
        if name not in features.names:
            raise InputError(f'there is no modality "{name}"; there are {", ".join(features.names)}')
    return features, names


def _splits(part: CompareConfig) -> list[np.ndarray]:
    """The part of every row, for every seed; an error where the test rows have nothing to retrieve."""
    features, names = _features(part)
    assert part.source is not None
    splits = []
    for seed in part.seeds:
        split, _ = parts_of(features, part.source, names, seed)
        if not (split == "test").any():
            raise InputError('no row has split "test"; add one to the data, or set source.resplit')
        if not _queries(features, names, split):
            raise InputError(
                f"no two modalities meet in two of the {(split == 'test').sum()} test rows (seed {seed}), so there is "
                'nothing to retrieve; give more rows the split "test", or set source.resplit'
            )
        splits.append(split)
    return splits


def _columns(features: FeatureSet, names: list[str]) -> np.ndarray:
    return np.asarray(features.present[:, [features.names.index(name) for name in names]])


def _queries(features: FeatureSet, names: list[str], split: np.ndarray) -> list[int]:
    """How many test rows have both modalities, for every pair that at least two have."""
    has = _columns(features, names)[split == "test"].astype(np.int64)
    together = (has.T @ has)[np.triu_indices(len(names), 1)]
    return [int(count) for count in together if count > 1]


def _missing(part: CompareConfig, splits: list[np.ndarray]) -> tuple[float, int]:
    """(share of the blocks of the training rows that the data lack, number of training rows), the largest of any seed."""
    features, names = _features(part)
    has = _columns(features, names)
    rows = [has[split == "train"] for split in splits]
    return max(float(1 - one.mean()) if one.size else 0.0 for one in rows), max(map(len, rows))


def _notes(part: CompareConfig, splits: list[np.ndarray]) -> list[str]:
    """Sentences on the anchor modality, on captions and labels that repeat, and on few queries."""
    features, names = _features(part)
    notes = []
    anchored = [name for name in part.methods if needs_anchor(find_method(name).objective)]
    if anchored and "text" not in names:
        anchor = anchor_of(part)
        share = 100 * float(features.present[:, features.names.index(anchor)].mean())
        notes.append(
            f"{', '.join(anchored)}: all modalities are compared with one. None is called text, so that one is {anchor}, "
            f"which most rows have ({share:.0f} %)."
        )
    relevance_of(features, part.relevant_by)  # an unknown column is an error before anything is trained
    test = splits[0] == "test"
    if part.relevant_by == ROW:
        notes += repeats(features, test)
    else:
        notes.append(
            f"what counts as found: every item with the {part.relevant_by} of the query, not only its own row."
        )
    fewest = min(count for split in splits for count in _queries(features, names, split))
    if fewest < FEW:
        notes.append(
            f"a direction has as few as {fewest} test queries, so that one query is {100 / fewest:.1f} points; small "
            "differences mean nothing here."
        )
    return notes


def repeats(features: FeatureSet, test: np.ndarray) -> list[str]:
    """A sentence where captions or labels of test rows repeat, so that several items are right."""
    rows, repeated = int(test.sum()), {}
    for column, name in (("text", "texts"), ("labels", "labels")):
        if column in features.meta.column_names:
            values = relevance_of(features, column)
            assert values is not None
            given = [value for origin, value in values[test] if origin == "value"]
            if len(set(given)) < len(given):
                among = "" if len(given) == rows else f" (of {len(given)})"
                repeated[column, name] = f"{len(set(given))} different {name}{among}"
    if not repeated:
        return []
    counts = " and ".join(repeated.values())
    columns = " or ".join(column for column, _ in repeated)
    return [
        f"{counts} in {rows} test rows, yet a query finds only its own row; --relevant-by {columns} counts every item with "
        "the same value."
    ]
