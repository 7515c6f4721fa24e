"""Sources of raw media, from a checked config to rows that train and test.

What depends on the model (modalities, tokenizer, frames, what else is measured) is its `MediaInputs`, which its entry of
MODELS names.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calmrl._support.text import plural
from calmrl.config.schema.train import HideSection, SourceSection, TrainConfig
from calmrl.data.hiding import hide
from calmrl.data.media.manifest import Manifest, Row, build, drop_empty, read_rows
from calmrl.data.media.problems import Problems, count_skipped, counts_of_test, skipped_words
from calmrl.data.media.public_collections import read_annotations
from calmrl.errors import InputError
from calmrl.models.registry import MODELS
from calmrl.protocols import MediaInputs
from calmrl.workflows.survey import absent_files, take_out, unplayable_files


def media_inputs(config: TrainConfig) -> MediaInputs:
    """How the model of a config reads raw media."""
    make: Callable[..., MediaInputs] = MODELS[config.model.kind].part("media")
    return make(config.model, config.modalities, config.root, config.seed)


def open_media(config: TrainConfig) -> tuple[dict[str, Any], list[Any], list[str]]:
    """(training rows by source, validation rows, notes). All that is missing on disk is in one error."""
    inputs, problems, notes = media_inputs(config), list[str](), list[str]()
    manifests: dict[str, Manifest] = {}
    for name, section in config.sources.items():
        try:
            manifests[name] = read_media(section, inputs, config.root, report=_note_to(notes, name))
        except InputError as error:
            problems.append(f"source {name}: {error}" + (f"\n    {section.needs.strip()}" if section.needs else ""))
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
