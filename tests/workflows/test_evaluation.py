"""`calmrl evaluate`: a trained model on the test rows of its data, wherever they lie."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calmrl.cli import main
from calmrl.config.schema.train import TrainConfig
from calmrl.data.features.writer import write_features
from calmrl.workflows.evaluate import evaluate
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


def test_evaluates_on_the_test_rows_of_its_sources(run):
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "run"])
    assert not stop.value.code
    rows = json.loads((run / "run" / "results.json").read_text())["rows"]
    assert {row["dataset"] for row in rows} == {"mine"}
    assert {row["n"] for row in rows if row["task"] == "text->image" and row["metric"] == "R@1"} == {20}
    tasks = {row["task"] for row in rows}
    assert {"text->all re-ranked", "observed", "calibrated", "90", "classification linear without image"} <= tasks


def test_evaluates_on_other_features(run):
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "run", "--data", "data/mine", "--out", "other.json"])
    assert not stop.value.code
    assert json.loads((run / "other.json").read_text())["rows"]


def test_what_is_not_measured_is_named_with_the_reason(run, capsys):
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
    with pytest.raises(SystemExit):
        main(["evaluate", "run", "--data", "holes", "--out", "holes.json"])
    assert "not measured: classification: the data have no labels" in capsys.readouterr().err
    assert not any("not measured" in remark for remark in evaluate(run / "run").remarks)  # everything is there


def test_a_model_without_an_imputer_says_so(run):
    config = TRAINED | {"method": "contrastive", "root": str(run / "data")}
    train(TrainConfig.model_validate(config), run / "plain")
    (sentences,) = evaluate(run / "plain").not_measured.values()
    assert sentences == ["imputation, coverage and anchor shift: this model imputes nothing"]


def test_what_the_features_were_made_without_stands_below_the_tables(run, capsys):
    left_out = {"train": {"listed": 70, "audio": 9}, "test": {"listed": 25, "items": 5, "audio": 2}}
    z = {name: np.random.default_rng(1).normal(size=(20, 6)).astype(np.float32) for name in ("image", "text", "audio")}
    write_features(run / "other", z, split=["test"] * 20, info={"left_out": left_out})
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "run", "--data", "other", "--out", "other.json"])
    assert not stop.value.code
    written = json.loads((run / "other.json").read_text())["meta"]["datasets"]["other"]
    assert written["left_out"] == left_out["test"]
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("Skipped: other: 5 items, audio of 2 (of 25 listed items).") > 1
