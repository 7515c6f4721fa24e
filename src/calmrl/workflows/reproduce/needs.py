"""What a table needs on disk, what of it is there, and where the rest comes from; looked at before anything runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from calmrl.arrays import to_tensor
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.data.media.collections.public_collection import PublicCollection
from calmrl.data.media.collections.registry import COLLECTIONS
from calmrl.errors import InputError
from calmrl.metrics.classify import zero_shot
from calmrl.metrics.measures import Measurement, row
from calmrl.models.saved import Trained
from calmrl.workflows.reproduce.tables import CLASSIFICATION, COUNTS, FEATURES_OF_OTHERS, IMAGEBIND, RUNS, PaperTable

CLASSES = "-classes"  # ends the name of the features that hold one row per class


def by_name_rows(folder: Path, model: Trained | None = None) -> list[Measurement]:
    """Accuracy in percent on the test rows of a feature directory, for each modality but text: task "audio->class".

    An item has one label or several, of which any counts. The vector of a class is that of its name: the text of a row
    with this label alone, or of a row of the features `<folder>-classes`, which hold one row per class.

    Parameters
    ----------
    folder : Path
        Features with text and labels.
    model : Trained, optional
        Maps the features to the space in which to compare; without it they are compared as they are.
    """
    check_names(folder)
    data = open_features(folder)
    labels = _label_sets(data)
    classes = _class_vectors(_with_classes(folder), model)
    names = list(classes)
    predict = zero_shot(np.stack([classes[name] for name in names]))
    test = np.ones(len(data), dtype=bool) if data.split is None else data.split == "test"
    measured = []
    for modality in (name for name in data.names if name != "text"):
        rows = np.flatnonzero(test & data.present[:, data.names.index(modality)])
        if len(rows):
            guess = predict(_vectors(data, modality, rows, model))
            hits = [names[place] in labels[item] for place, item in zip(guess, rows, strict=True)]
            measured.append(row(f"{modality}->class", "accuracy", 100 * float(np.mean(hits)), len(rows)))
    return measured


def check_names(folder: Path) -> None:
    """An error if a feature directory cannot be classified by the names of its classes, whatever the model."""
    data, named = open_features(folder), _with_classes(folder)
    if "text" not in named.names:
        raise InputError(f"{folder} has no text, so the names of its classes have no vectors")
    there = named.present[:, named.names.index("text")]
    alone = {next(iter(some)) for some, text in zip(_label_sets(named), there, strict=True) if text and len(some) == 1}
    absent = sorted({label for some in _label_sets(data) for label in some} - alone)
    if absent:
        raise InputError(
            f"{folder} has the label {absent[0]!r} (and {len(absent) - 1} others) only beside other labels, so the text of "
            f"that class alone is not there; put features with one row per class, with text and labels, into "
            f"{folder}{CLASSES}"
        )
    if data.split is not None and not (data.split == "test").any():
        raise InputError(f'{folder} has no row of split "test"; extract it again with --collection')


def _with_classes(folder: Path) -> FeatureSet:
    """The features that have the names of the classes: those of one row per class, if they are there."""
    named = folder.with_name(folder.name + CLASSES)
    return open_features(named if named.is_dir() else folder)


def _class_vectors(data: FeatureSet, model: Trained | None) -> dict[str, np.ndarray]:
    """Label -> mean of the text vectors of the rows that have this label alone."""
    labels = _label_sets(data)
    there = data.present[:, data.names.index("text")]
    alone = np.array([place for place in range(len(data)) if there[place] and len(labels[place]) == 1])
    vectors = _vectors(data, "text", alone, model)
    of_label: dict[str, list[np.ndarray]] = {}
    for place, vector in zip(alone, vectors, strict=True):
        of_label.setdefault(next(iter(labels[place])), []).append(vector)
    return {label: np.mean(some, axis=0) for label, some in of_label.items()}


def _label_sets(data: FeatureSet) -> list[frozenset[str]]:
    if data.labels is None:
        raise InputError(f"{data.source or data.name} has no labels; extract it again with --collection")
    return [
        frozenset(map(str, label)) if isinstance(label, (list, tuple, np.ndarray)) else frozenset({str(label)})
        for label in data.labels
    ]


def _vectors(data: FeatureSet, modality: str, rows: np.ndarray, model: Trained | None) -> np.ndarray:
    """(n, d) unit vectors of one modality of some rows."""
    z: Mapping[str, Any] = {modality: np.asarray(data.z[modality][rows])}
    if model is not None:
        z = model.encode(z, np.ones((len(rows), 1), dtype=bool))
    vectors = to_tensor(z[modality]).double().numpy(force=True)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


TOKENIZER = "pretrained_weights/bert/bert-base-uncased"
CHECKPOINT = "pretrained_weights/vast/model_step_204994.pt"
ORIGINS = {
    "msrvtt": "MSR-VTT, captions in MSRVTT_data.json; lists of the 1k-A split as in CLIP4Clip",
    "didemo": "DiDeMo: LocalizingMoments on GitHub",
    "activitynet": "ActivityNet Captions: captions.zip of the project page",
    "vatex": "VATEX, version 1.1 of the public test",
    "audiocaps": "AudioCaps: cdjkim/audiocaps on GitHub; clips of AudioSet",
    "clotho": "Clotho v2.1 on Zenodo",
    "vast150k": "VAST-150K: ispamm/GRAM on GitHub; clips of VAST-27M",
}
CLASSIFIED = ("vggsound", "ucf101", "audioset", "esc50")


@dataclass(frozen=True)
class Need:
    """Something that a table needs: where it belongs below --root, whether it is there, what is known of it."""

    where: str
    there: bool
    about: str

    def __str__(self) -> str:
        return f"{'there  ' if self.there else 'missing'}  {self.where}: {self.about}"


def needs_of(exhibit: PaperTable, root: Path) -> list[Need]:
    """Everything that a table needs, in the order of its use. Features of models of others are not needed, but used."""
    runs = [RUNS[maker] for maker in exhibit.makers if maker in RUNS]
    media = [run for run in runs if run.config != CLASSIFICATION]
    tested = _tested(exhibit, [run.name for run in media])
    parts: dict[str, set[str]] = {}
    for name in (name for run in media for name in run.collections):
        parts.setdefault(name, set()).add("train")
    for name in tested:
        parts.setdefault(name, set()).add("test")
    for value in (value for value in exhibit.values if value.maker == COUNTS):
        parts.setdefault(value.collection, set()).add(value.task)
    needs = _packages(["av"] * bool(media) + ["transformers"] * bool(media))
    if media:
        needs += [_tokenizer(root), _file(root, CHECKPOINT, "the checkpoint of VAST: TXH-mercury/VAST on GitHub")]
    needs += [_collection(name, root, sorted(wanted, reverse=True)) for name, wanted in parts.items()]
    if len(runs) > len(media):
        needs += [_features(name, root) for name in CLASSIFIED]
    return needs


def features_of_others(root: Path, model: str, collection: str) -> Path:
    """Where the features of a model of others on a collection belong."""
    return root / "features" / model / collection


def check(exhibit: PaperTable, needs: Iterable[Need]) -> None:
    """An error with everything that is missing."""
    missing = [need for need in needs if not need.there]
    if missing:
        listed = "\n".join(f"  {need}" for need in missing)
        raise InputError(f"{exhibit.name} needs what is not there:\n{listed}")


def _tested(exhibit: PaperTable, runs: list[str]) -> list[str]:
    return list(dict.fromkeys(v.collection for v in exhibit.values if v.maker in runs and v.collection))


def _packages(names: list[str]) -> list[Need]:
    advice = 'not installed; pip install "calmrl[encoders]"'
    return [Need(f"the package {name}", False, advice) for name in names if find_spec(name) is None]


def _tokenizer(root: Path) -> Need:
    there = any((root / TOKENIZER).glob("*token*"))
    return Need(TOKENIZER, there, "the tokenizer: google-bert/bert-base-uncased on Hugging Face")


def _file(root: Path, name: str, about: str) -> Need:
    return Need(name, (root / name).is_file(), about)


def _collection(name: str, root: Path, parts: list[str]) -> Need:
    """Annotation files and media of some parts of a collection; a few absent files are no obstacle, all of them are."""
    publisher = COLLECTIONS[name]()
    split, published = next(iter(publisher.splits.items()))
    files = [published.files[part][0] for part in parts if part in published.files]
    origin = f"{', '.join(files)} and media of {' and '.join(parts)} ({ORIGINS[name]})"
    if not (root / name).is_dir():
        return Need(name, False, origin)
    try:
        rows = [columns for _, columns in PublicCollection(name, root / name, split).read().rows]
    except InputError as error:
        return Need(name, False, f"{error}; needed: {origin}")
    counts = {}
    for part in parts:
        items = [columns for columns in rows if columns.get("split") == part]
        with_media = sum(
            any(Path(str(columns[modality])).is_file() for modality in publisher.media if columns.get(modality))
            for columns in items
        )
        if not with_media:
            what = f"none of {len(items):,} {part} items has a media file" if items else f"no {part} items"
            return Need(name, False, f"{what}; needed: {origin}")
        counts[part] = f"{part} {with_media:,} of {len(items):,} items with media"
    return Need(name, True, ", ".join(counts.values()))


def _features(name: str, root: Path) -> Need:
    where = f"{IMAGEBIND}/{name}"
    about = f"features of ImageBind on {name}, with labels and the names of the classes as text"
    if not (root / where).is_dir():
        return Need(where, False, about)
    try:
        check_names(root / where)
    except InputError as error:
        return Need(where, False, str(error))
    return Need(where, True, about)


def others_without_features(exhibit: PaperTable, root: Path) -> list[str]:
    """Models of others in this table of which no features are given at all."""
    return [
        model
        for model in FEATURES_OF_OTHERS
        if model in exhibit.makers
        and not any(
            features_of_others(root, model, value.collection).is_dir()
            for value in exhibit.values
            if value.maker == model
        )
    ]
