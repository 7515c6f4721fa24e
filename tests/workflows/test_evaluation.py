"""`calmrl evaluate`: a trained model on the test rows of its data, wherever they lie."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from calmrl._support.engine import LocalEngine
from calmrl.alignment import CalibratedAlignment
from calmrl.config.schema.train import TrainConfig
from calmrl.data.features.feature_set import FeatureSet
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.losses import ContrastiveLoss
from calmrl.models.heads import Heads
from calmrl.models.saved import Trained
from calmrl.workflows.evaluate import Evaluation, evaluate, evaluate_on
from calmrl.workflows.train import train

TRAINED = {
    "kind": "train",
    "sources": {"mine": {"features": "mine"}},
    "model": {"kind": "heads", "width": 4},
    "stages": [{"steps": 3}],
    "batch_size": 16,
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run on features that are named relative to `root`, and evaluated from another folder."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(90, 3))
    z = {name: (shared @ rng.normal(size=(3, 6))).astype(np.float32) for name in ("image", "text", "audio")}
    split = ["train"] * 60 + ["val"] * 10 + ["test"] * 20
    write_features(tmp_path / "data" / "mine", z, split=split, labels=["a", "b", "c"] * 30)
    config = TRAINED | {
        "method": "calibrated",
        "root": str(tmp_path / "data"),
        "calibration": {"imputer": {"method": "gaussian", "latent_dim": 2}},
        "matching": {"hidden": 8, "layers": 1, "heads": 2},
    }
    train(TrainConfig.model_validate(config), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_evaluates_on_the_test_rows_of_its_sources(run, calmrl):
    assert calmrl("evaluate", "run")[0] == 0
    rows = json.loads((run / "run" / "results.json").read_text())["rows"]
    assert {row["dataset"] for row in rows} == {"mine"}
    assert {row["n"] for row in rows if row["task"] == "text->image" and row["metric"] == "R@1"} == {20}
    tasks = {row["task"] for row in rows}
    assert {"text->all re-ranked", "observed", "calibrated", "90", "classification linear without image"} <= tasks


def test_what_is_not_measured_is_named_with_the_reason(run, calmrl):
    """Features without labels and split, of which no row has all and no row has text with audio."""
    rng = np.random.default_rng(1)
    z = {name: rng.normal(size=(12, 6)).astype(np.float32) for name in ("image", "text", "audio")}
    present = np.tile([[True, True, False], [True, False, True]], (6, 1))
    write_features(run / "holes", z, present)
    evaluation = evaluate(run / "run", run / "holes")
    (sentences,) = evaluation.not_measured.values()
    text = "\n".join(sentences)
    assert "retrieval between text and audio: fewer than two test rows have both" in text
    assert "classification: the data have no labels" in text
    for measure in ("imputation", "coverage", "shift"):
        assert f"{measure}: 0 of 12 test rows have every modality; at least two are needed" in text
    assert {f"not measured: {sentence}" for sentence in sentences} <= set(evaluation.remarks)
    told = calmrl("evaluate", "run", "--data", "holes", "--out", "holes.json")[2]
    assert "not measured: classification: the data have no labels" in told
    assert not any("not measured" in remark for remark in evaluate(run / "run").remarks)  # everything is there


def test_a_model_without_an_imputer_says_so(run):
    config = TRAINED | {"method": "contrastive", "root": str(run / "data")}
    train(TrainConfig.model_validate(config), run / "plain")
    (sentences,) = evaluate(run / "plain").not_measured.values()
    assert sentences == ["imputation, coverage and anchor shift: this model imputes nothing"]


def test_what_the_features_were_made_without_stands_below_the_tables(run, calmrl):
    left_out = {"train": {"listed": 70, "audio": 9}, "test": {"listed": 25, "items": 5, "audio": 2}}
    z = {name: np.random.default_rng(1).normal(size=(20, 6)).astype(np.float32) for name in ("image", "text", "audio")}
    write_features(run / "other", z, split=["test"] * 20, info={"left_out": left_out})
    code, _, told = calmrl("evaluate", "run", "--data", "other", "--out", "other.json")
    assert code == 0
    written = json.loads((run / "other.json").read_text())["meta"]["datasets"]["other"]
    assert written["left_out"] == left_out["test"]
    assert " ".join(told.split()).count("Skipped: other: 5 items, audio of 2 (of 25 listed items).") > 1


# ---- what data and models allow


def model(names=("image", "text")) -> Trained:
    torch.manual_seed(0)
    return Trained(Heads(dict.fromkeys(names, 4), 3))


def data(present=None, names=("image", "text"), **columns) -> FeatureSet:
    rng = np.random.default_rng(0)
    z = {name: rng.normal(size=(12, 4)).astype(np.float32) for name in names}
    return FeatureSet(z, present, pa.table({"id": [str(i) for i in range(12)], **columns}))


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        (data(names=("image",)), "the model has image, text, the data have image; they must share two modalities"),
        (data(split=["train"] * 12), 'no row has split "test"; there is nothing to evaluate on'),
    ],
)
def test_what_cannot_be_evaluated(features, reason):
    with pytest.raises(InputError, match=reason):
        evaluate_on(model(), features)


HALF = ["test"] * 6 + ["train"] * 6
NO_TEST_VAL = "classification: no row has split val, from which a classifier learns"
NO_SPLIT = "classification: no row has split train or val, from which a classifier learns"


@pytest.mark.parametrize(
    ("columns", "split", "n", "lacking"),
    [
        ({}, None, 12, "classification: the data have no labels"),
        ({"split": HALF}, None, 6, "classification: the data have no labels"),
        ({"split": HALF, "labels": ["a"] * 12}, None, 6, NO_TEST_VAL),
        ({"labels": ["a"] * 12}, None, 12, NO_SPLIT),
        ({"split": HALF, "labels": ["a"] * 12}, np.array(["test"] * 12, dtype=object), 12, NO_SPLIT),
    ],
)
def test_which_rows_are_evaluated_and_what_they_lack(columns, split, n, lacking):
    """The split that is given, else that of the data, else all rows."""
    not_measured: list[str] = []
    rows, _ = evaluate_on(model(), data(**columns), split, not_measured=not_measured)
    assert {one["n"] for one in rows if one["metric"] == "R@1" and "->" in one["task"]} == {n}
    assert lacking in not_measured


@pytest.mark.parametrize(
    ("sounds", "lacking"),
    [(1, ["retrieval between image and sound, text and sound: fewer than two test rows have both"]), (2, [])],
)
def test_directions_that_no_two_rows_ask_in(sounds, lacking):
    three = ("image", "text", "sound")
    present = np.ones((12, 3), dtype=bool)
    present[sounds:, 2] = False
    not_measured: list[str] = []
    evaluate_on(model(three), data(present, three), not_measured=not_measured)
    assert [sentence for sentence in not_measured if sentence.startswith("retrieval")] == lacking


def test_two_modalities_have_no_anchor_shift():
    trained, features, not_measured = model(), data(), list[str]()
    imputer = GaussianImputer(latent_dim=1, max_iter=2).fit(trained.encode(features.z))
    trained.align = CalibratedAlignment(ContrastiveLoss(), imputer=imputer, update="frozen")
    evaluate_on(trained, features, not_measured=not_measured)
    assert "anchor shift: it needs three modalities" in not_measured


def test_remarks_name_the_data_set_where_there_are_several():
    config = TrainConfig.model_validate(TRAINED | {"method": "gram"})
    evaluation = Evaluation(config, "calmrl evaluate x", notes=["a note"])
    info = SimpleNamespace(model_dump=dict, left_out={})
    evaluation.add("a", info, [], [{"id": "q"}], ["one"])
    assert evaluation.remarks == ["a note", "not measured: one"]
    evaluation.add("b", info, [], not_measured=["two"])
    assert evaluation.remarks == ["a note", "a: not measured: one", "b: not measured: two"]
    assert evaluation.neighbours == [{"method": "gram", "id": "q"}]
    meta = evaluation.as_dict()["meta"]
    assert meta["methods"]["gram"] == {"about": "trained in 1 stage", "ours": False}
    assert (meta["command"], meta["remarks"]) == ("calmrl evaluate x", evaluation.remarks)


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A run of two sources, of which only `b` has test rows, without the training; its config and what it reads."""
    z = {name: np.ones((6, 4), np.float32) for name in ("image", "text")}
    write_features(tmp_path / "a", z, split=["train"] * 6)
    write_features(tmp_path / "b", z, split=["train"] * 3 + ["test"] * 3)
    sources = {name: {"features": str(tmp_path / name)} for name in "ab"}
    config = TrainConfig.model_validate(TRAINED | {"method": "gram", "sources": sources})
    kind = SimpleNamespace(reads="features")
    home = importlib.import_module("calmrl.workflows.evaluate")
    monkeypatch.setattr(home, "load_model", lambda folder: model())
    monkeypatch.setattr(home, "load", lambda path, kind: config)
    monkeypatch.setattr(home, "MODELS", {"heads": kind})
    return config, kind


def test_sources_without_test_rows(saved, tmp_path):
    assert list(evaluate(tmp_path).datasets) == ["b"]
    del saved[0].sources["b"]
    with pytest.raises(InputError, match='no source has rows of split "test"; name test data with `data`'):
        evaluate(tmp_path)


@pytest.mark.parametrize(
    ("reads", "options", "reason"),
    [
        ("media", {"data": "data"}, "is evaluated on the test rows of its sources; leave out `data`"),
        ("media", {"relevant_by": "text"}, "a model of raw media a query finds its own row; leave out `relevant_by`"),
        ("media", {"engine": LocalEngine()}, "a model of raw media is evaluated in one process; leave out `engine`"),
        ("features", {"sources": {}}, "sources are for a model of raw media; name features with data"),
    ],
)
def test_options_that_do_not_fit_a_model(saved, tmp_path, reads, options, reason):
    saved[1].reads = reads
    with pytest.raises(InputError, match=reason):
        evaluate(tmp_path, **options)
