"""From a checked config to the objects it names. Config stops here: what is built takes plain arguments.

What depends on the model of raw media (modalities, tokenizer, frames, what else is measured) is its `MediaInputs`, which its
entry of MODELS names.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from calmrl._support.distributed import own_rows, world
from calmrl._support.registry import lookup
from calmrl._support.section import Section
from calmrl._support.text import plural
from calmrl.alignment import CalibratedAlignment
from calmrl.config.schema.train import CalibrationSection, HideSection, SourceSection, TrainConfig
from calmrl.data.features.feature_set import FeatureSet, open_features, relevance_texts
from calmrl.data.hiding import hide
from calmrl.data.loaders.feature_rows import FeatureRows, widths_of
from calmrl.data.media.manifest import Manifest, Row, build, drop_empty, read_rows
from calmrl.data.media.problems import Problems, count_skipped, counts_of_test, skipped_words
from calmrl.data.media.public_collections import read_annotations
from calmrl.datasets import load_dataset
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.gradient import GaussianLatent
from calmrl.imputers.registry import make_imputer
from calmrl.losses.matching import InstanceMatching
from calmrl.losses.registry import LOSSES
from calmrl.models.heads import INIT_ROWS, Heads
from calmrl.models.registry import MODELS
from calmrl.protocols import MediaInputs, StreamingImputer
from calmrl.training.loop import Trainer
from calmrl.training.methods import find_method
from calmrl.training.plan import Stage, TrainerOptions
from calmrl.training.step import Step, freeze
from calmrl.training.validate import encode_all
from calmrl.workflows.survey import absent_files, take_out, unplayable_files


def media_inputs(config: TrainConfig) -> MediaInputs:
    """How the model of a config reads raw media."""
    make: Callable[..., MediaInputs] = MODELS[config.model.kind].part("media")
    return make(config.model, config.modalities, config.root, config.seed)


def open_media(config: TrainConfig) -> tuple[dict[str, Any], list[Any], list[str]]:
    """(training rows by source, validation rows, notes). All that is missing on disk is in one error."""
    inputs, notes = media_inputs(config), list[str]()
    manifests, problems = _each_source(
        config, lambda name, section: read_media(section, inputs, config.root, report=_note_to(notes, name))
    )
    problems += inputs.missing()
    if problems:
        raise InputError("\n  ".join(["something is missing", *problems]))
    train, validation = {}, []
    for name, manifest in manifests.items():
        section = config.sources[name]
        split = _splits(manifest)
        present = np.array([[name in item.cells for name in inputs.names] for item in manifest.items], dtype=bool)
        rows = np.flatnonzero(split == "train")
        if section.hide is not None:
            present[rows] = hidden(present[rows], inputs.names, section.hide, config.seed)
        if len(rows):
            train[name] = inputs.rows(manifest, section, name=name, rows=rows, present=present)
        held_out = np.flatnonzero(split == "val")
        if len(held_out):
            validation.append(inputs.rows(manifest, section, name=name, rows=held_out, training=False))
    _check_shapes(config, train, inputs)
    if not validation:
        notes.append('no row has split "val": the last checkpoint is kept, not the best')
    return train, validation, notes


def _each_source(
    config: TrainConfig, open_source: Callable[[str, SourceSection], Any]
) -> tuple[dict[str, Any], list[str]]:
    """(what each source that can be opened gives, what is wrong with the others)"""
    opened, problems = dict[str, Any](), list[str]()
    for name, section in config.sources.items():
        try:
            opened[name] = open_source(name, section)
        except InputError as error:
            problems.append(f"source {name}: {error}" + (f"\n    {section.needs.strip()}" if section.needs else ""))
    return opened, problems


def open_test_media(config: TrainConfig, inputs: MediaInputs | None = None) -> dict[str, Any]:
    """The test rows of every source that has some, as the model of the config (or `inputs`) reads them."""
    inputs = media_inputs(config) if inputs is None else inputs
    with_test_rows: dict[str, Any] = {}
    for name, section in config.sources.items():
        if section.part in ("train", "val"):
            continue
        manifest = read_media(section, inputs, config.root)
        rows = np.flatnonzero(_splits(manifest) == "test")
        if len(rows):
            with_test_rows[name] = inputs.rows(manifest, section, name=name, rows=rows, training=False)
    return with_test_rows


def _check_shapes(config: TrainConfig, train: Mapping[str, Any], inputs: MediaInputs) -> None:
    """Rows that train together must have the same shapes."""
    for stage in config.stages:
        together = [train[name] for name in stage.sources or train if name in train]
        shapes = {rows.name: inputs.shape(rows) for rows in together}
        if len(set(shapes.values())) > 1:
            listed = "; ".join(f"{name}: {shape}" for name, shape in shapes.items())
            raise InputError(
                f"stage {stage.name} mixes sources of different shapes ({listed}); set frames, slices and text_tokens of "
                "these sources to the same numbers"
            )


def _splits(manifest: Manifest) -> np.ndarray:
    return np.array([item.columns.get("split") or "train" for item in manifest.items], dtype=object)


def read_media(
    section: SourceSection, inputs: MediaInputs, root: str | None, *, report: Callable[[str], None] = lambda line: None
) -> Manifest:
    """The manifest of a source for `inputs`; a modality it has no column for is missing in all its rows.

    Any problem is an error, unless the section allows it: then `left_out` of the manifest counts what is left out, and
    `report` gets it in words.
    """
    problems = Problems()
    names, kinds = inputs.names, inputs.kinds
    where, home, rows = _rows_of(section, inputs, root, problems, report)
    columns = {key for _, row in rows for key in row}
    rows = [(line, {**{name: None for name in names if name not in columns}, **row}) for line, row in rows]
    if section.part is not None:
        rows = [(line, row | {"split": section.part}) for line, row in rows]
    ignored = [name for name in kinds if name in columns and name not in names]
    manifest = build(rows, {name: kinds[name] for name in names}, problems, root=home, ignore=ignored)
    parts = manifest.parts()
    drop_empty(manifest, problems)
    take_out(manifest, problems, absent_files(manifest))
    if section.allow_missing:
        take_out(manifest, problems, unplayable_files(manifest, inputs.workers))
    if problems and not section.allow_missing:
        advice = "repair what is wrong, or set allow_missing: true to leave it out, counted"
        raise InputError(
            "\n    ".join([f"{where} has {plural(len(problems), 'problem')}; {advice}", *problems.lines(allowed=False)])
        )
    if not manifest.items:
        raise InputError("\n    ".join([f"{where}: no item is left", *problems.lines(allowed=True)]))
    manifest.left_out = count_skipped(parts, problems)
    words = skipped_words(counts_of_test(manifest.left_out, whole=True))
    for line in [f"left out: {words}", *problems.lines(allowed=True)] if words else ():
        report(line)
    return manifest


def _rows_of(
    section: SourceSection,
    inputs: MediaInputs,
    root: str | None,
    problems: Problems,
    report: Callable[[str], None],
) -> tuple[str, Path, list[Row]]:
    """(what messages call the source, the folder that paths start from, its rows)"""
    if section.collection is not None:
        collection = section.collection.at(root)
        content = collection.read()
        for line in (content.counts, *content.notes):
            report(line)
        return str(collection), Path(), content.rows
    path = _at(str(section.manifest), root)
    folders = {name: _at(folder, root) for name, folder in section.media.items()}
    absent = [f"no file {path}"] * (not path.is_file())
    absent += [f"no folder {folder}" for folder in folders.values() if not folder.is_dir()]
    if absent:
        raise InputError(", ".join(absent))
    if section.layout is None:
        return str(path), path.parent, read_rows(path, problems)
    wanted = [name for name in inputs.names if name in folders or inputs.kinds[name] == "text"]
    notes: list[str] = []
    rows = read_annotations(path, section.layout, folders, wanted, notes)
    for line in notes:
        report(line)
    return str(path), path.parent, rows


def _note_to(notes: list[str], name: str) -> Callable[[str], None]:
    """Puts sentences on a source among the notes."""
    return lambda line: notes.append(f"source {name}: {line}")


def hidden(present: np.ndarray, names: tuple[str, ...], section: HideSection, seed: int, values: Any = None) -> Any:
    """`present` of some rows without what the section hides; kind "value" needs their `values`."""
    if section.kind == "value" and values is None:
        raise InputError('hide.kind "value" needs features; for raw media take mcar, one or source')
    for name in (name for group in section.groups or () for name in group):
        if name not in names:
            raise InputError(f'hide.groups names the modality "{name}"; the training has {", ".join(names)}')
    options: dict[str, Any] = {}
    if section.groups is not None:
        options["groups"] = [[names.index(name) for name in group] for group in section.groups]
    options |= {} if values is None else {"values": values}
    options |= {} if section.complete is None else {"complete": section.complete}
    generator = np.random.default_rng(seed if section.seed is None else section.seed)
    return hide(present, section.rate, generator, kind=section.kind, **options)


def _at(path: str, root: str | None) -> Path:
    return Path(root or ".") / path


def build_objective(section: Section, names: Sequence[str], width: int) -> nn.Module:
    """The loss of an objective section, for vectors of this width of these modalities."""
    arguments = section.model_dump()
    name = arguments.pop("name")
    sized = {"names": list(names), "width": width}
    needed = LOSSES.signature(name).parameters
    return LOSSES[name](**arguments, **{key: value for key, value in sized.items() if key in needed})


@dataclass
class Data:
    """Training and validation rows of every source, and what a person should know about them."""

    train: dict[str, Any]
    validation: list[Any]
    widths: dict[str, int]  # of features; empty for raw media
    notes: list[str]
    opened: dict[str, FeatureSet] = field(default_factory=dict)  # the feature sets that the rows come from


def open_data(config: TrainConfig, given: Mapping[str, FeatureSet] | None = None) -> Data:
    """Open the sources. Rows of split "train" train, those of "val" validate, others are not touched.

    Sources that are `given` are open already. Whatever is wrong with any of the others is in one error.
    """
    if MODELS[config.model.kind].reads == "media":
        media, held_out, notes = open_media(config)
        return Data(dict(media), list(held_out), {}, notes)

    def opens(name: str, section: SourceSection) -> FeatureSet:
        features = given[name] if given and name in given else open_features_of(section, config.root)
        _ = features.split  # reads the table of rows
        return features

    opened, problems = _each_source(config, opens)
    if problems:
        found = f"{len(problems)} of {plural(len(config.sources), 'source')} cannot be opened"
        raise InputError("\n  ".join([found, *problems]))
    widths = widths_of(opened, config.modalities)
    train, validation, notes = {}, [], []
    for name, section in config.sources.items():
        data = opened[name]
        rows, kept, said = split_rows(data, section, list(widths), config.validation.fraction, config.seed)
        present = data.present
        if section.hide is not None:
            present = present.copy()
            names = tuple(name for name in data.names if name in widths)  # others are not seen anyway
            values = {name: data.z[name][rows] for name in names} if section.hide.kind == "value" else None
            here = np.ix_(rows, np.array([data.names.index(name) for name in names]))
            present[here] = hidden(present[here], names, section.hide, config.seed, values)
        train[name] = FeatureRows.of(data, rows, present, widths, name=name, weight=section.weight)
        validation.append(FeatureRows.of(data, kept, widths=widths, name=name))
        validation[-1].check()  # a bad row would otherwise stop the first epoch at its end
        notes += [f"source {name}: {text}" for text in said]
        unusable = train[name].unusable + validation[-1].unusable
        if unusable:
            notes.append(f"source {name}: left out {plural(unusable, 'row')} with none of {', '.join(widths)}")
    return Data(train, validation, widths, notes, opened)


def build_step(config: TrainConfig, data: Data, model: Any = None) -> Step:
    """Model, objective and matching head, with their starting weights drawn from the seed; `model` may be given."""
    sources = list(data.train.values())
    model = start_model(config, data) if model is None else model
    freeze(model, config.optimiser.freeze)
    torch.manual_seed(config.seed)
    objective = build_objective(config.chosen_objective, model.names, model.width)
    _take_temperature(objective, model)
    if find_method(config.method).calibrated:
        objective = _calibrated(objective, config.calibration or CalibrationSection(), model, sources, config.seed)
    if config.matching is None:
        matching = getattr(model, "matching", None)
        return Step(model, objective, matching, config.matching_weight, config.fused_weight)
    options = config.matching.model_dump(exclude={"weight"})
    return Step(model, objective, InstanceMatching(list(data.widths), model.width, **options), config.matching.weight)


def _take_temperature(objective: nn.Module, model: Any) -> None:
    """A learned temperature starts at the one that came with the model's checkpoint, if it has one (`contra_temp`)."""
    learned = getattr(getattr(objective, "temperature", None), "log_value", None)
    own = getattr(getattr(model, "matching", None), "temperature", None)
    if isinstance(learned, nn.Parameter) and isinstance(own, torch.Tensor):
        with torch.no_grad():
            learned.copy_(own.log())


def _validation_relevance(config: TrainConfig, data: Data) -> list[Any] | None:
    """One value per validation row of all sources, if the config names a column; a row without a value has its own."""
    column = config.validation.relevant
    if column is None:
        return None
    if not data.opened:
        raise InputError("validation.relevant needs features; for a model of raw media a query finds its own row")
    values = [value for rows in data.validation for value in data.opened[rows.name].column(column)[rows.home]]
    return [row if text is None else text for row, text in enumerate(relevance_texts(values))]


def build_trainer(
    config: TrainConfig,
    data: Data,
    step: Step,
    out: Path | None = None,
    *,
    cpu: bool = False,
    latent_scores: bool = True,
    **hooks: Any,
) -> Trainer:
    """The trainer of a config; `hooks` are its `progress` and `listen`."""
    stages = []
    for stage in config.stages:
        options = stage.model_dump(exclude={"sources", "batches"})
        rows = [lookup(data.train, name, "source of training rows") for name in stage.sources or data.train]
        stages.append(Stage(sources=rows, composition=stage.batches, **options))
    how = TrainerOptions(
        **config.optimiser.model_dump(exclude={"freeze"}),  # keys of the same names
        seed=config.seed,
        batch_size=config.batch_size,
        precision=config.precision,
        metric=config.validation.metric,
        validate_every=config.validation.every,
        patience=config.validation.patience,
        checkpoint_every=config.checkpoint.every,
        keep=config.checkpoint.keep,
        log_every=config.log_every,
        refit=config.calibration.refit if config.calibration else 1,
        trackers=config.trackers,
        latent_scores=latent_scores,
        cpu=cpu,
    )
    return Trainer(
        step,
        stages,
        how,
        out=out,
        validation=data.validation,
        relevant=_validation_relevance(config, data),
        tracked=config.model_dump(mode="json"),
        **hooks,
    )


def open_features_of(section: SourceSection, root: str | None = None) -> FeatureSet:
    """The feature set that a section names."""
    if section.dataset is not None:
        return load_dataset(section.dataset, **section.options)
    return open_features(Path(root or ".") / str(section.features), **section.options)


def split_rows(
    data: FeatureSet, section: SourceSection, modalities: Sequence[str], fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(training rows, validation rows, notes); without validation rows some training rows are held out."""
    split, notes = parts_of(data, section, modalities, seed)
    rows, held_out = np.flatnonzero(split == "train"), np.flatnonzero(split == "val")
    if len(held_out) or not len(rows):
        return rows, held_out, notes
    count = max(1, round(fraction * len(rows)))
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[np.random.default_rng(seed).choice(len(rows), count, replace=False)] = True
    return (
        rows[~chosen],
        rows[chosen],
        [*notes, f'no row has split "val", so {plural(count, "training row is", "training rows are")} held out'],
    )


def parts_of(
    data: FeatureSet, section: SourceSection, modalities: Sequence[str], seed: int
) -> tuple[np.ndarray, list[str]]:
    """("train", "val", "test" or "" per row, notes): the split column, or a new split; "" where a row is left out."""
    split = np.full(len(data), "train", dtype=object) if data.split is None else data.split.copy()
    use = np.ones(len(data), dtype=bool)
    if section.complete:
        use &= data.present[:, [data.names.index(name) for name in modalities if name in data.names]].all(axis=1)
    if section.exclude is not None:
        use &= ~data.column(section.exclude).astype(bool)
    if section.resplit is not None:
        groups = data.column(section.resplit.by)
        generator = np.random.default_rng(seed if section.resplit.seed is None else section.resplit.seed)
        order = generator.permutation(np.unique(groups[use].astype(str)))
        cuts = np.round(len(order) * np.cumsum([section.resplit.test, section.resplit.val])).astype(int)
        for name, part in zip(("test", "val", "train"), np.split(order, cuts), strict=True):
            split[np.isin(groups.astype(str), part)] = name
    split[~use] = ""
    note = f"{(~use).sum()} rows are left out (complete={section.complete}, exclude={section.exclude})"
    return split, [] if use.all() else [note]


def start_model(config: TrainConfig, data: Data) -> Any:
    """The model before its first step."""
    kind = MODELS[config.model.kind]
    names = media_inputs(config).names if kind.reads == "media" else tuple(data.widths)
    return kind.part("build")(config.model, data, names, config.seed, config.root)


def _calibrated(
    objective: nn.Module, section: CalibrationSection, model: Heads, sources: Sequence[FeatureRows], seed: int
) -> CalibratedAlignment:
    imputer = make_imputer(seed=seed, **section.imputer.model_dump())
    update = section.update
    gaussian, alone = isinstance(imputer, GaussianImputer), world()[0] == 1
    if update == "auto":
        update = "stepwise" if gaussian or (alone and isinstance(imputer, StreamingImputer)) else "frozen"
    if update == "stepwise" and not gaussian and not alone:
        raise InputError(
            f"the imputer {section.imputer.method} learns from the rows of its own process only, so several processes "
            "cannot update it stepwise; set calibration.update=frozen"
        )
    if update == "gradient" and not gaussian:
        raise InputError(f"calibration.update=gradient needs the imputer gaussian; got {section.imputer.method}")
    if update == "gradient":
        z, present = encode_all(model, sources, most=INIT_ROWS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a start; the optimiser continues from it
            start = imputer.set_params(max_iter=10).fit(*own_rows(z, present))
            imputer = GaussianLatent(start.parameters_)
    options = section.model_dump(
        include={"impute_from", "impute_grad", "renormalize", "certainty", "weight", "m_every", "momentum"}
    )
    return CalibratedAlignment(objective, imputer=imputer, update=update, **options)
