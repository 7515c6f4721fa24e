"""Classification by the names of classes: an item belongs to the class whose name has the nearest vector."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calmrl.arrays import to_tensor
from calmrl.data.features.feature_set import FeatureSet, open_features
from calmrl.errors import InputError
from calmrl.metrics.classify import zero_shot
from calmrl.metrics.measures import Measurement, row
from calmrl.models.saved import Trained

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
