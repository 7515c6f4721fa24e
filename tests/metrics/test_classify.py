"""Classification: classifiers against slow twins, missing modalities, and rows that never vanish."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from torch import nn

from calmrl import GaussianImputer
from calmrl.errors import InputError
from calmrl.imputers import RidgeImputer
from calmrl.metrics import classification, fine_tune, fine_tuned_classification
from calmrl.metrics.classify import NEIGHBOURS, STRENGTHS, Classifier, accuracy_and_f1, linear_probe, nearest
from calmrl.metrics.scores import fuse
from tests.reference import classify as slow

NAMES = ("image", "text")
LABELS = ("cat", "dog", "owl")


def items(seed=0, n=240, d=5, noise=0.6):
    """Two modalities around one direction per class; NaN where missing; a few rows have one modality only."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    z = {m: np.eye(3, d)[y] * 2 + noise * rng.normal(size=(n, d)) for m in NAMES}
    present = np.ones((n, 2), bool)
    present[rng.random(n) < 0.15, 0] = False
    present[(rng.random(n) < 0.15) & present[:, 0], 1] = False
    z = {m: np.where(present[:, [j]], v, np.nan) for j, (m, v) in enumerate(z.items())}
    split = np.array(["train", "train", "val", "test"])[np.arange(n) % 4]
    return z, present, np.array(LABELS)[y], split


def table(rows):
    assert all(set(row) == {"task", "metric", "value", "n"} for row in rows)
    return {(row["task"], row["metric"]): row["value"] for row in rows}


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 4)), min_size=1, max_size=30))
def test_accuracy_and_f1_equal_the_twins_and_sklearn(pairs):
    truth, guess = map(list, zip(*pairs, strict=True))
    accuracy, f1 = accuracy_and_f1(np.array(truth), np.array(guess), "t")
    assert accuracy == {
        "task": "t",
        "metric": "accuracy",
        "value": pytest.approx(slow.accuracy(truth, guess)),
        "n": len(pairs),
    }
    assert f1["value"] == pytest.approx(slow.macro_f1(truth, guess))
    assert f1["value"] == pytest.approx(
        100 * f1_score(truth, guess, labels=sorted(set(truth)), average="macro", zero_division=0)
    )


def test_fuse_equals_the_twin_and_gives_zero_for_nothing():
    z, present, *_ = items()
    found = fuse(z, present).numpy()
    for i, there in enumerate(present):
        np.testing.assert_allclose(found[i], slow.mean_of_units([z[m][i] for j, m in enumerate(NAMES) if there[j]]))
    empty = present.copy()
    empty[3] = False
    imputer = RidgeImputer().fit(z)
    for fusion, completed in (("mean", None), ("anchor", None), ("imputed", imputer)):
        vectors = fuse(z, empty, fusion, completed=completed).numpy()
        assert not vectors[3].any()
        np.testing.assert_allclose(np.linalg.norm(np.delete(vectors, 3, 0), axis=1), 1)
    filled = imputer.transform(z, present)
    np.testing.assert_array_equal(
        fuse(z, present, "imputed", completed=filled), fuse(z, present, "imputed", completed=imputer)
    )
    assert not fuse(z, np.zeros_like(present), "imputed", completed=imputer).any()
    with pytest.raises(InputError, match="fusion 'imputed' needs completed="):
        fuse(z, present, "imputed")


def test_probe_and_neighbours_equal_the_twins():
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=200)
    x = np.eye(3, 5)[y] + 0.7 * rng.normal(size=(200, 5))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    train, val, test = np.arange(100), np.arange(100, 150), np.arange(150, 200)
    votes = {k: [slow.vote(x[train], y[train].tolist(), q, k) for q in x[100:]] for k in NEIGHBOURS}
    k = max(NEIGHBOURS, key=lambda k: slow.accuracy(y[val], votes[k][:50]))
    assert nearest(x[train], y[train], x[val], y[val])(x[test]).tolist() == votes[k][50:]
    fits = {c: LogisticRegression(C=c, max_iter=2000).fit(x[train], y[train]) for c in STRENGTHS}
    c = max(STRENGTHS, key=lambda c: slow.accuracy(y[val], fits[c].predict(x[val])))
    np.testing.assert_array_equal(linear_probe(x[train], y[train], x[val], y[val])(x[test]), fits[c].predict(x[test]))


def test_what_is_tried_on_validation_rows():
    x = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
    y = np.array([1, 0, 0, 0, 1])
    asked = np.array([[0.1], [3.9]])
    predict = nearest(x, y, asked, np.array([0, 0]))  # five neighbours out of five are right, the nearest one is wrong
    assert predict(asked).tolist() == [0, 0]
    assert nearest(x[:4], y[:4], asked, np.array([0, 0]))(asked).tolist() == [1, 0]  # five of four are not tried


@pytest.mark.parametrize("fusion", ["mean", "anchor", "imputed"])
def test_every_way_with_every_modality_missing(fusion):
    z, present, labels, split = items()
    imputer = RidgeImputer().fit(z, present) if fusion == "imputed" else None
    texts = {label: row for label, row in zip(LABELS, np.eye(3, 5), strict=True)}
    rows = classification(z, present, labels, split, fusion=fusion, imputer=imputer, label_vectors=texts)
    found = table(rows)
    tasks = [
        f"classification {way}{end}"
        for way in ("linear", "knn", "zero-shot")
        for end in ("", " without image", " without text")
    ]
    assert set(found) == {(task, metric) for task in tasks for metric in ("accuracy", "macro-F1")}
    assert {row["n"] for row in rows} == {60}
    for way in ("linear", "knn", "zero-shot"):
        assert found[f"classification {way}", "accuracy"] > 90
        only = 100 * (present[split == "test"] == [True, False]).all(1).mean()
        assert found[f"classification {way} without image", "accuracy"] <= 100 - only


def test_without_a_modality_equals_hiding_it_and_counts_rows_with_nothing_as_wrong():
    z, present, labels, split = items(noise=0.1)
    found = table(classification(z, present, labels, split, ways=["linear"]))
    nothing = (present[split == "test"] == [True, False]).all(1).mean()
    assert 0 < nothing < 1
    assert found["classification linear without image", "accuracy"] == pytest.approx(100 * (1 - nothing))
    one = {"image": z["image"]}
    has = present[:, 0]
    alone = classification({"image": one["image"][has]}, None, labels[has], split[has], ways=["linear"])
    assert {row["task"] for row in alone} == {"classification linear"}  # nothing is left without the only modality


class Model(nn.Module):
    def __init__(self, d=5, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleDict({m: nn.Linear(d, width) for m in NAMES})

    def forward(self, inputs, present):
        return {m: nn.functional.normalize(self.heads[m](x), dim=1) for m, x in inputs.items()}


def test_fine_tuning_learns_leaves_the_model_alone_and_repeats():
    z, present, labels, split = items()
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = fine_tuned_classification(model, z, present, labels, split, 4, seed=3, lr=1e-2)
    found = table(rows)
    assert found["classification fine-tuned", "accuracy"] > 90
    assert found["classification fine-tuned without image", "accuracy"] < found["classification fine-tuned", "accuracy"]
    assert {row["n"] for row in rows} == {60}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert fine_tuned_classification(model, z, present, labels, split, 4, seed=3, lr=1e-2) == rows


def test_fine_tuning_with_dropout_repeats_and_leaves_the_global_generator_alone():
    z, present, labels, split = items()
    heads = nn.ModuleDict({m: nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)) for m in NAMES})
    state = torch.get_rng_state()
    rows = fine_tuned_classification(heads, z, present, labels, split, 4, steps=60)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert fine_tuned_classification(heads, z, present, labels, split, 4, steps=60) == rows


def test_fine_tuning_takes_heads_of_the_latent_model():
    z, present, labels, split = items()
    heads = GaussianImputer(latent_dim=3, tol=1e-3, random_state=0).fit(z, present).as_heads()
    assert (
        table(fine_tuned_classification(heads, z, present, labels, split, 3))["classification fine-tuned", "accuracy"]
        > 90
    )


def test_fine_tuning_keeps_the_best_weights_and_stops():
    """Validation labels that training can only get worse on: the weights from before the first step stay."""
    z, present, labels, _ = items(noise=0.1)
    y = torch.tensor([LABELS.index(label) for label in labels])
    inputs, there = {m: torch.from_numpy(v).float() for m, v in z.items()}, torch.from_numpy(present)
    head = nn.Linear(4, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    first = torch.zeros_like(y)  # what a head of zeros says
    tuned = fine_tune(Model(), head, inputs, there, y, (inputs, there, first), steps=200, patience=2)
    assert not tuned.head.weight.any()
    assert tuned.predict(inputs, there).tolist() == first.tolist()
    good = fine_tune(Model(), head, inputs, there, y, (inputs, there, y), steps=200)
    assert (good.predict(inputs, there) == y.numpy()).mean() > 0.9
    there[0] = False
    assert good.predict(inputs, there)[0] == -1


class Counting(nn.Module):
    """Remembers how many rows every training step had."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.sizes = []

    def __deepcopy__(self, memo):
        return self

    def forward(self, inputs, present):
        if self.training:
            self.sizes.append(len(present))
        return {"a": inputs["a"] * self.weight}


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, 100),
        ({"patience": 2}, 40),
        ({"patience": 100}, 500),
        ({"steps": 39}, 39),
        ({"patience": 2, "steps": 30}, 30),
    ],
)
def test_when_fine_tuning_stops(monkeypatch, options, steps):
    """Validation rows that have nothing are never right: every 20 steps one look that finds nothing better."""
    rates, make = [], torch.optim.AdamW
    monkeypatch.setattr(torch.optim, "AdamW", lambda groups: rates.extend(g["lr"] for g in groups) or make(groups))
    generator = torch.Generator().manual_seed(0)
    inputs, there = {"a": torch.randn(150, 2, generator=generator)}, torch.ones(150, 1, dtype=torch.bool)
    y = (inputs["a"][:, 0] > 0).long()
    model, head = Counting(), nn.Linear(2, 2)
    before = head.weight.clone()
    looked = []

    predict = Classifier.predict
    monkeypatch.setattr(Classifier, "predict", lambda *a: looked.append(len(model.sizes)) or predict(*a))
    tuned = fine_tune(model, head, inputs, there, y, (inputs, ~there, y), **options)
    assert len(model.sizes) == steps
    assert model.sizes[:3] == [64, 64, 22]  # every row once before any row twice
    assert rates == [1e-4, 1e-2]
    assert looked == [*range(0, steps + 1, 20), *([steps] if steps % 20 else [])]
    assert torch.equal(tuned.head.weight, before)  # no better than before, so it stays as it was


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": [float("nan")] + ["cat"] * 239}, "labels has missing values"),
        ({"split": ["train"] * 239}, "split has 239 entries but z has 240 rows; pass one per row"),
        ({"labels": ["cat"] * 240}, "all training rows have the label 'cat'"),
        ({"labels": ["cat", "dog"]}, "labels has 2 entries but z has 240"),
        ({"labels": [None] + ["cat"] * 239}, "labels has missing values"),
        ({"split": ["train"] * 240}, 'split has no row that is "val"'),
        ({"ways": ["lineal"]}, 'did you mean "linear"'),
        ({"label_vectors": {"cat": np.ones(5)}}, "no embedding of the label"),
        ({"imputer": 3}, "does not read completed="),
    ],
)
def test_errors(change, message):
    z, present, labels, split = items()
    with pytest.raises(InputError, match=message):
        classification(**{"z": z, "present": present, "labels": labels, "split": split, **change})
