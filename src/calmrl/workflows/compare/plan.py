"""What a comparison will do, before anything is trained: its jobs, what to know about the data, and for every trial its
training config and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calmrl._support.text import plural
from calmrl.config import CompareConfig
from calmrl.config.loading import load_values
from calmrl.config.schema.train import ObjectiveSection, SourceSection, TrainConfig
from calmrl.data.features.feature_set import ROW, FeatureSet, open_features, relevance_of
from calmrl.data.loaders.feature_rows import Axes, FeatureRows, principal_axes, standardization
from calmrl.data.patterns import rows_together
from calmrl.errors import InputError
from calmrl.metrics.measures import FEW
from calmrl.models.heads import fit_kernels, lifted_rows
from calmrl.models.registry import MODELS
from calmrl.training.methods import FEATURES, Changes, continual, find_method
from calmrl.workflows.from_config import Data, open_data, open_features_of, parts_of

NAME = "data"  # of the one source
SMALL = 2000  # rows, below which more of them are set apart to test
PATIENCE = 6  # validations without a better score, of 20 in a whole training, after which a trial stops


@dataclass(frozen=True)
class Sweep:
    """One value of a key of the training config, in place of what a method has there."""

    key: str
    value: Any = field(hash=False)  # may be a list

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class Job(NamedTuple):
    """One cell of a comparison."""

    dataset: str
    setting: str
    method: str
    seed: int
    sweep: Sweep | None = None

    @property
    def row(self) -> str:
        """The name of its row in results and tables: "gram", or in a sweep "gram objective.temperature=0.1"."""
        return self.method if self.sweep is None else f"{self.method} {self.sweep}"

    def labels(self) -> dict[str, Any]:
        """What its measurements have in common, as results.json names it."""
        return {"dataset": self.dataset, "setting": self.setting, "method": self.row, "seed": self.seed}

    def __str__(self) -> str:
        return f"data set {self.dataset}, setting {self.setting}, method {self.row}, seed {self.seed}"


def jobs_of(config: CompareConfig) -> list[Job]:
    """Every (data set, setting, method, seed), in the order of the config; every swept value is a row of its own."""
    rows: list[tuple[str, Sweep | None]] = [(method, None) for method in config.methods]
    for key, values in config.sweep.items():
        rows += [(method, Sweep(key, value)) for method in config.methods for value in values]
    return [
        Job(dataset, setting, method, seed, sweep)
        for seed in config.seeds
        for dataset in config.names
        for setting in config.only(dataset).settings
        for method, sweep in rows
    ]


def config_for(path: str | Path, overrides: Sequence[str] = ()) -> CompareConfig:
    """A config that compares features as they are: nothing is hidden, rows lack what they lack.

    The split column is used if it names test rows; otherwise items are split anew for every seed.

    Parameters
    ----------
    path : str or Path
        A feature directory or file.
    overrides : sequence of str
        `key=value`, as on the command line.

    Examples
    --------
    >>> config_for("features", ["seeds=[0]"]).settings  # doctest: +SKIP
    """
    features = open_features(path)
    source: dict[str, Any] = {"features": str(path)}
    if features.split is None or not (features.split == "test").any():
        source["resplit"] = {"by": "id", "val": 0.1, "test": 0.3 if len(features) < SMALL else 0.2}
    config = load_values({"kind": "compare", "source": source, "settings": "as-is"}, overrides, name=str(path))
    assert isinstance(config, CompareConfig)
    return config


@dataclass(frozen=True)
class Plan:
    """The jobs, and sentences about what is left out, which rule was used, and what numbers can mean."""

    jobs: list[Job]
    notes: list[str]


def place_of(config: CompareConfig, dataset: str, setting: str) -> str:
    """The name of a data set and setting: the setting alone where there is one data set."""
    return setting if len(config.names) == 1 else f"{dataset}, {setting}"


def plan(config: CompareConfig) -> Plan:
    """The jobs of a comparison. "ideal" is among them only for data whose training rows lack nothing.

    Data on which nothing can be compared are an error that names them.
    """
    jobs, notes = jobs_of(config), []
    for dataset in config.names:
        try:
            part = _Part.of(config.only(dataset))
            notes += [f"{dataset}: {note}" for note in part.notes()]
        except InputError as error:
            raise InputError(f"data set {dataset}: {error}") from error
        ideals = list(
            dict.fromkeys(job.row for job in jobs if job.dataset == dataset and find_method(job.method).ideal)
        )
        share, rows = part.missing()
        if share and ideals:
            jobs = [job for job in jobs if job.dataset != dataset or job.row not in ideals]
            notes.append(
                f"{dataset}: {', '.join(ideals)} is left out; it stands for complete data, but {100 * share:.1f} % of the "
                "blocks of the training rows are missing before anything is hidden."
            )
        elif ideals:
            notes.append(
                f"{dataset}: {', '.join(ideals)} trains on {plural(rows, 'row')} (at most), all of them complete."
            )
    if not jobs:
        raise InputError("no method is left to compare; add one that may lack modalities, such as aligner")
    return Plan(jobs, notes)


@dataclass(frozen=True)
class _Part:
    """A data set of a comparison: which of the modalities its rows have, and the part of every row, for every seed."""

    config: CompareConfig
    features: FeatureSet
    has: dict[str, np.ndarray]  # modality -> (N,)
    splits: list[np.ndarray]

    @staticmethod
    def of(config: CompareConfig) -> _Part:
        """An error where the test rows have nothing to retrieve."""
        assert config.source is not None
        features = features_of(config.source)
        names = config.modalities or list(features.names)
        for name in names:
            if name not in features.names:
                raise InputError(f'there is no modality "{name}"; there are {", ".join(features.names)}')
        has = {name: np.asarray(features.present[:, features.names.index(name)]) for name in names}
        part = _Part(config, features, has, [])
        for seed in config.seeds:
            split, _ = parts_of(features, config.source, names, seed)
            if not (split == "test").any():
                raise InputError('no row has split "test"; add one to the data, or set source.resplit')
            if not part.queries(split):
                raise InputError(
                    f"no two modalities meet in two of the {(split == 'test').sum()} test rows (seed {seed}), so there is "
                    'nothing to retrieve; give more rows the split "test", or set source.resplit'
                )
            part.splits.append(split)
        return part

    def rows(self, split: np.ndarray, part: str) -> np.ndarray:
        """(rows of this part, modalities): which they have."""
        return np.stack([has[split == part] for has in self.has.values()], axis=1)

    def queries(self, split: np.ndarray) -> list[int]:
        """How many test rows have both modalities, for every pair that at least two have."""
        together = rows_together(self.rows(split, "test"))[np.triu_indices(len(self.has), 1)]
        return [int(count) for count in together if count > 1]

    def missing(self) -> tuple[float, int]:
        """(share of the blocks of the training rows that the data lack, number of training rows), the largest of any seed."""
        rows = [self.rows(split, "train") for split in self.splits]
        return max(float(1 - one.mean()) if one.size else 0.0 for one in rows), max(map(len, rows))

    def notes(self) -> list[str]:
        """Sentences on the anchor modality, on captions and labels that repeat, and on few queries."""
        notes, by = [], self.config.relevant_by
        anchored = [name for name in self.config.methods if needs_anchor(find_method(name).objective)]
        if anchored and "text" not in self.has:
            anchor = anchor_of(self.config)
            notes.append(
                f"{', '.join(anchored)}: all modalities are compared with one. None is called text, so that one is {anchor}, "
                f"which most rows have ({100 * float(self.has[anchor].mean()):.0f} %)."
            )
        relevance_of(self.features, by)  # an unknown column is an error before anything is trained
        if by == ROW:
            notes += repeats(self.features, self.splits[0] == "test")
        else:
            notes.append(f"what counts as found: every item with the {by} of the query, not only its own row.")
        fewest = min(count for split in self.splits for count in self.queries(split))
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
    columns = ", or ".join(column for column, _ in repeated)
    return [
        f"{counts} in {plural(rows, 'test row')}, yet only its own row counts as found for a query; relevant_by: {columns} "
        "in the config lets every item with the same value count."
    ]


def trials_of(name: str, steps: int, count: int, regime: str = "joint") -> list[tuple[str | None, Changes]]:
    """(form of the features, changes to the training config) of each trial of a method."""
    method = find_method(name)
    stages = method.stages("steps", steps)
    if regime == "continual" and (method.steps or method.init_only) and not method.ideal:
        method, stages = continual(method, steps)
    trained = "+".join(part for part in name.split("+") if part != method.hubs)  # without the way it is measured
    fixed = {"method": "aligner" if method.ideal else trained, "stages": stages}
    return [
        (trial[FEATURES], {key: value for key, value in trial.items() if key != FEATURES} | fixed)
        for trial in method.configs(count)
    ]


def training_config(config: CompareConfig, setting: str, seed: int, changes: Mapping[str, Any]) -> TrainConfig:
    """The config of one trial: what all methods share, changed by the method. "ideal" hides nothing.

    `config` is about one data set, as `CompareConfig.only` gives it.
    """
    assert config.source is not None
    relevant = None if config.relevant_by == ROW else config.relevant_by
    values: dict[str, Any] = {
        "kind": "train",
        "sources": {NAME: config.source.model_dump(mode="json")},
        "modalities": config.modalities,
        "method": "contrastive",
        "model": {"kind": "heads", "width": config.width, "standardize": None},
        "batch_size": config.batch_size,
        "validation": {
            "metric": config.metric,
            "every": max(1, config.steps // 20),
            "patience": PATIENCE,
            "relevant": relevant,
        },
        "checkpoint": {"every": 0},
        "log_every": max(1, config.steps // 20),
        "seed": seed,
    }
    if setting:
        values["sources"][NAME]["hide"] = config.settings[setting].hide
    kind = MODELS[changes.get("model.kind", "heads")]
    if not kind.steps:
        groups = None if config.source.resplit is None else config.source.resplit.by
        wanted = {"candidates": config.trials, "groups": groups, "relevant": relevant}
        known = kind.part("section").model_fields
        values["model"] = {key: value for key, value in wanted.items() if key in known}
    for key, value in changes.items():
        here = values
        *path, last = key.split(".")
        for part in path:
            here = here.setdefault(part, {})
        here[last] = deepcopy(value)  # a later key may change a part of it
    if "name" not in (values.get("objective") or {"name": ""}):  # a swept key of the method's own objective
        values["objective"]["name"] = find_method(values["method"]).objective
    if needs_anchor((values.get("objective") or {}).get("name", "")):
        values["objective"].setdefault("anchor", anchor_of(config))
    return TrainConfig.model_validate(values)


def needs_anchor(objective: str) -> bool:
    """Whether the objective compares one modality with all others, by default text."""
    fields = ObjectiveSection.member(objective).model_fields if objective else {}
    return "anchor" in fields and fields["anchor"].default is not None


def anchor_of(config: CompareConfig) -> str:
    """The anchor modality of objectives that need one: text, or, without a text, what most rows have."""
    assert config.source is not None
    features = features_of(config.source)
    names = config.modalities or list(features.names)
    counts = {name: int(features.present[:, features.names.index(name)].sum()) for name in names}
    return "text" if "text" in counts else max(counts, key=lambda name: counts[name])


@dataclass
class ComparedRows:
    """Training and validation rows for the trainer, and test rows for the measures, all standardised alike."""

    data: Data
    test: FeatureRows
    features: FeatureSet


@lru_cache(maxsize=8)
def features_of(section: SourceSection) -> FeatureSet:
    """The features of a comparison, opened once."""
    return open_features_of(section)


def open_rows(config: CompareConfig, setting: str, seed: int, standardize: str | None = "scale") -> ComparedRows:
    """Split and hide as the config says (nothing is hidden for setting ""), and standardise on the training rows.

    `standardize=None` leaves the features as they are.
    """
    assert config.source is not None
    plain = training_config(config, setting, seed, {})
    features = features_of(config.source)
    data = open_data(plain, {NAME: features})
    split, _ = parts_of(features, config.source, list(data.widths), seed)
    test = FeatureRows.of(features, split == "test", widths=data.widths, name="test")
    if not len(test):
        raise InputError('no row has split "test"; add one to the data, or set source.resplit')
    rows = ComparedRows(data, test, features)
    if standardize is None:
        return rows
    return standardized(rows, standardize, principal_axes(list(data.train.values())))


def standardized(rows: ComparedRows, how: str, axes: Axes) -> ComparedRows:
    """The same rows; `rows` have their features as they are, and `axes` are those of their training rows."""
    train, validation = list(rows.data.train.values()), rows.data.validation
    centres, maps = standardization(axes, how)
    widths = {name: matrix.shape[1] for name, matrix in maps.items()}
    mapped = [_mapped(source, centres, maps, widths) for source in (*train, *validation, rows.test)]
    done = replace(rows.data, train={NAME: mapped[0]}, validation=mapped[1:-1], widths=widths)
    return replace(rows, data=done, test=mapped[-1])


def _mapped(source: FeatureRows, centres: dict[str, Any], maps: dict[str, Any], widths: dict[str, int]) -> FeatureRows:
    """The same rows with features (x - centre) map, in memory."""
    rows = np.arange(len(source))
    x = source.fetch(rows, source.present, 0)
    z = {name: ((x[name] - centres[name]) @ maps[name]).numpy() for name in source.names}
    return replace(source, z=z, rows=rows, widths=widths)


def on_kernel_features(rows: ComparedRows, how: str, seed: int) -> ComparedRows:
    """The same rows; features compare with the observed training rows alone. `rows` have their features as they are."""
    lifts = fit_kernels(list(rows.data.train.values()), how, seed)
    data = replace(
        rows.data,
        train={name: lifted_rows(source, lifts) for name, source in rows.data.train.items()},
        validation=[lifted_rows(source, lifts) for source in rows.data.validation],
        widths={name: lift.width for name, lift in lifts.items()},
    )
    return replace(rows, data=data, test=lifted_rows(rows.test, lifts))
