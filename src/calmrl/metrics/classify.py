"""Classification from representations: what the labels of test items can be told by, also with a modality missing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from calmrl._support.registry import lookup
from calmrl.convention import Array, check, to_tensor
from calmrl.errors import InputError
from calmrl.metrics.fuse import fuse
from calmrl.metrics.measures import Measurement, row

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
NEIGHBOURS = (1, 5, 10, 20, 50)

Predict = Callable[[np.ndarray], np.ndarray]  # vectors (N, d) -> numbers of classes (N,)


def linear_probe(x: np.ndarray, y: np.ndarray, x_val: np.ndarray, y_val: np.ndarray) -> Predict:
    """Logistic regression on frozen vectors, its C the one of `STRENGTHS` with the best accuracy on validation rows."""
    models = [LogisticRegression(C=strength, max_iter=2000).fit(x, y) for strength in STRENGTHS]
    return _best(models, x_val, y_val)


def nearest(x: np.ndarray, y: np.ndarray, x_val: np.ndarray, y_val: np.ndarray) -> Predict:
    """Vote of the k nearest training vectors by cosine, k the one of `NEIGHBOURS` that is best on validation rows."""
    models = [KNeighborsClassifier(n_neighbors=k).fit(x, y) for k in NEIGHBOURS if k <= len(x)]
    return _best(models, x_val, y_val)


def zero_shot(label_vectors: np.ndarray) -> Predict:
    """The class whose label text has the largest cosine with the vector; the first of equal ones. Nothing is trained."""
    unit = label_vectors / np.linalg.norm(label_vectors, axis=1, keepdims=True)
    return lambda vectors: (vectors @ unit.T).argmax(axis=1)


WAYS = {"linear": linear_probe, "knn": nearest}


def accuracy_and_f1(truth: np.ndarray, guess: np.ndarray, task: str) -> list[Measurement]:
    """Rows "accuracy" and "macro-F1", in percent.

    F1 of class c = 2 (right guesses of c) / (guesses of c + rows of c); macro-F1 is its mean over the classes that the
    test rows have. -1 is no answer, which is wrong.
    """
    scores = [2 * ((guess == c) & (truth == c)).sum() / ((guess == c).sum() + (truth == c).sum()) for c in set(truth)]
    n = len(truth)
    return [
        row(task, "accuracy", 100 * (guess == truth).mean(), n),
        row(task, "macro-F1", 100 * float(np.mean(scores)), n),
    ]


def classification(
    z: Mapping[str, Array],
    present: Array | None,
    labels: Sequence[Any] | np.ndarray,
    split: Sequence[str] | np.ndarray,
    *,
    ways: Sequence[str] = ("linear", "knn"),
    fusion: str = "mean",
    imputer: Any = None,
    label_vectors: Mapping[Any, Array] | None = None,
) -> list[Measurement]:
    """Accuracy and macro-F1 on the test rows: with what they have, and without each modality in turn.

    | input | meaning |
    |---|---|
    | z, present | representations in one space, all of one width, by the shared convention |
    | labels | one per row |
    | split | "train", "val" or "test" per row: classifiers learn on train, C and k are chosen on val |
    | ways | "linear": logistic regression, "knn": nearest training items |
    | fusion | how a row becomes one vector: "mean", "anchor" or "imputed" (see `fuse`) |
    | imputer | a fitted imputer, for fusion "imputed" |
    | label_vectors | label -> embedding of its text in the same space: adds "zero-shot" |

    Tasks are "classification linear" and "classification linear without image". No row is left out: a test row that
    has nothing but the image gets no answer without it, which counts as wrong.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(["cat", "dog"], 30)
    >>> z = {"image": rng.normal(size=(60, 4)) + 3 * (labels == "cat")[:, None]}
    >>> rows = classification(z, None, labels, np.tile(["train", "val", "test"], 20), ways=("knn",))
    >>> rows[0]["task"]
    'classification knn'
    """
    makers = {way: lookup(WAYS, way, "way to classify") for way in ways}
    views = check(z, present)
    classes, y, parts = classes_and_parts(labels, split, len(views))
    train, val, test = parts["train"], parts["val"], parts["test"]

    def vectors(mask: Any, rows: np.ndarray) -> np.ndarray:
        part = {name: array[rows] for name, array in views.arrays.items()}
        return fuse(part, mask[rows], fusion, completed=imputer).numpy(force=True)

    learned = [vectors(views.present, rows) for rows in (train, val)]
    predict = {way: make(learned[0], y[train], learned[1], y[val]) for way, make in makers.items()}
    if label_vectors is not None:
        predict["zero-shot"] = zero_shot(_label_matrix(label_vectors, classes))
    rows = []
    for suffix, mask in masks_without(views.names, views.present):
        asked = vectors(mask, test)
        answered = mask.numpy(force=True)[test].any(1)
        for way, guess in predict.items():
            predicted = np.where(answered, guess(asked), -1)
            rows += accuracy_and_f1(y[test], predicted, f"classification {way}{suffix}")
    return rows


def masks_without(names: Sequence[str], present: Any) -> list[tuple[str, Any]]:
    """("", present), then (" without image", present with no image), and so on. A single modality is never taken away."""
    masks = [("", present)]
    for j, name in enumerate(names if len(names) > 1 else ()):
        left = to_tensor(present).clone()
        left[:, j] = False
        masks.append((f" without {name}", left))
    return masks


def classes_and_parts(labels: Any, split: Any, n: int) -> tuple[list[Any], np.ndarray, dict[str, np.ndarray]]:
    """(classes in order, (n,) number of each row's class, part -> its rows); every part needs rows."""
    listed, where = (x.tolist() if hasattr(x, "tolist") else list(x) for x in (labels, split))
    for name, given in (("labels", listed), ("split", where)):
        if len(given) != n:
            raise InputError(f"{name} has {len(given)} entries but z has {n} rows; pass one per row")
    if any(label is None or label != label for label in listed):
        raise InputError("labels has missing values; leave rows without a label out of z, present, labels and split")
    parts = {part: np.flatnonzero([part == other for other in where]) for part in ("train", "val", "test")}
    empty = [part for part, rows in parts.items() if not len(rows)]
    if empty:
        raise InputError(f'split has no row that is "{empty[0]}"; it needs "train", "val" and "test"')
    classes = list(dict.fromkeys(listed))
    number = {label: c for c, label in enumerate(classes)}
    y = np.array([number[label] for label in listed])
    if len(set(y[parts["train"]])) < 2:
        raise InputError(f"all training rows have the label {listed[parts['train'][0]]!r}; there is nothing to learn")
    return classes, y, parts


def _label_matrix(label_vectors: Mapping[Any, Array], classes: Sequence[Any]) -> np.ndarray:
    absent = [label for label in classes if label not in label_vectors]
    if absent:
        raise InputError(f"label_vectors has no embedding of the label {absent[0]!r}; pass one for each label")
    return np.stack([to_tensor(label_vectors[label]).detach().double().numpy(force=True) for label in classes])


def _best(models: Sequence[Any], x_val: np.ndarray, y_val: np.ndarray) -> Predict:
    """The model with the best accuracy on validation rows; the first of equal ones."""
    return max(models, key=lambda model: model.score(x_val, y_val)).predict
