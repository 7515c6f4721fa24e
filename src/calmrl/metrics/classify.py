"""Classification from representations: what the labels of test items can be told by, also with a modality missing."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from calmrl._support.registry import lookup
from calmrl.arrays import Array, check, to_tensor
from calmrl.errors import InputError
from calmrl.metrics.measures import Measurement, row
from calmrl.metrics.scores import fuse

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
NEIGHBOURS = (1, 5, 10, 20, 50)

Predict = Callable[[np.ndarray], np.ndarray]  # vectors (N, d) -> numbers of classes (N,)


def linear_probe(x: np.ndarray, y: np.ndarray, x_val: np.ndarray, y_val: np.ndarray) -> Predict:
    """Logistic regression on frozen vectors, its C the one of `STRENGTHS` with the best accuracy on validation rows.

    Solved far beyond what accuracy needs, so that rounding, which differs between processes, cannot change an answer.
    """
    models = [LogisticRegression(C=strength, max_iter=2000, tol=1e-8).fit(x, y) for strength in STRENGTHS]
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


CHECK_EVERY = 20  # steps between looks at the validation rows
PREDICT_ROWS = 4096


class Classifier(nn.Module):
    """Class scores (N, classes) = linear(unit vector of sum over observed m of z^m), with z = model(inputs, present).

    `model` may also be an `nn.ModuleDict` with one head per modality, as `GaussianImputer.as_heads` gives: z^m is then the
    unit vector of its output.
    """

    def __init__(self, model: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.model, self.head = model, head

    def forward(self, inputs: Mapping[str, Tensor], present: Tensor) -> Tensor:
        inputs = {name: torch.where(present[:, j, None], x, 0.0) for j, (name, x) in enumerate(inputs.items())}
        if isinstance(self.model, nn.ModuleDict):
            z = {name: normalize(self.model[name](x), dim=1) for name, x in inputs.items()}
        else:
            z = self.model(inputs, present)
        stacked = torch.stack([z[name] for name in inputs], dim=1)  # (N, k, width)
        return self.head(normalize(torch.where(present[:, :, None], stacked, 0.0).sum(1), dim=1))

    @torch.no_grad()
    def predict(self, inputs: Mapping[str, Tensor], present: Tensor) -> np.ndarray:
        """(N,) numbers of classes; -1 for rows that have nothing."""
        self.eval()
        guesses = []
        for start in range(0, len(present), PREDICT_ROWS):
            rows = slice(start, start + PREDICT_ROWS)
            guess = self({name: values[rows] for name, values in inputs.items()}, present[rows]).argmax(1)
            guesses.append(torch.where(present[rows].any(1), guess, -1))
        return torch.cat(guesses).numpy(force=True)


def fine_tune(
    model: nn.Module,
    head: nn.Linear,
    inputs: Mapping[str, Tensor],
    present: Tensor,
    y: Tensor,
    validation: tuple[Mapping[str, Tensor], Tensor, Tensor],
    *,
    steps: int = 500,
    batch_size: int = 64,
    lr: float = 1e-4,
    head_lr: float = 1e-2,
    patience: int = 5,
    seed: int = 0,
) -> Classifier:
    """Train `head` and a copy of `model` by cross-entropy (AdamW), and keep the weights that were best on validation rows.

    `model(inputs, present)` gives a dict of (N, width) tensors, one per modality; `inputs` is a dict of (N, d_m) tensors
    by the shared convention, `y` (N,) the numbers of the classes, `validation` the same three for validation rows. At
    most `steps` steps; every 20 the validation accuracy is looked at, and after `patience` looks without a better one
    training stops. `model` and `head` stay as they were.
    """
    both = Classifier(copy.deepcopy(model), copy.deepcopy(head))
    optimizer = torch.optim.AdamW(
        [{"params": list(both.model.parameters()), "lr": lr}, {"params": list(both.head.parameters()), "lr": head_lr}]
    )
    generator = torch.Generator().manual_seed(seed)
    asked, there, truth = validation[0], validation[1], validation[2].numpy(force=True)

    def score() -> float:
        return float((both.predict(asked, there) == truth).mean())

    best, kept, since = score(), copy.deepcopy(both.state_dict()), 0
    order: list[int] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # for dropout in the model
        for step in range(1, steps + 1):
            if not order:
                order = torch.randperm(len(present), generator=generator).tolist()
            rows, order = torch.tensor(order[:batch_size], device=present.device), order[batch_size:]
            both.train()
            loss = cross_entropy(both({name: values[rows] for name, values in inputs.items()}, present[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % CHECK_EVERY == 0 or step == steps:
                reached = score()
                if reached > best:
                    best, kept, since = reached, copy.deepcopy(both.state_dict()), 0
                else:
                    since += 1
                if since >= patience:
                    break
    both.load_state_dict(kept)
    return both


def fine_tuned_classification(
    model: nn.Module,
    inputs: Mapping[str, Array],
    present: Array | None,
    labels: Sequence[Any] | np.ndarray,
    split: Sequence[str] | np.ndarray,
    width: int,
    **options: Any,
) -> list[Measurement]:
    """As `classification`, by `fine_tune` of a model whose representations have that width; options are its keywords.

    Tasks are "classification fine-tuned" and "classification fine-tuned without image".
    """
    views = check(inputs, present)
    classes, y, parts = classes_and_parts(labels, split, len(views))
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    whole = {name: to_tensor(array).float().to(device) for name, array in views.arrays.items()}
    target = torch.from_numpy(y).to(device)

    def part(name: str, mask: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        rows = torch.from_numpy(parts[name]).to(device)
        return {m: x[rows] for m, x in whole.items()}, mask.to(device)[rows], target[rows]

    head = nn.utils.skip_init(nn.Linear, width, len(classes), device=device)  # draws no random numbers
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    tuned = fine_tune(model, head, *part("train", views.present), part("val", views.present), **options)
    rows = []
    for suffix, mask in masks_without(views.names, views.present):
        asked, there, truth = part("test", mask)
        guess = tuned.predict(asked, there)
        rows += accuracy_and_f1(truth.numpy(force=True), guess, f"classification fine-tuned{suffix}")
    return rows
