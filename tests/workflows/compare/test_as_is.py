"""Data as they are: nothing hidden, no modality of a particular name, few complete test rows; and what is left out."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest

from calmrl import load
from calmrl.config import CompareConfig
from calmrl.config import load as load_config
from calmrl.data.features.writer import write_features
from calmrl.errors import InputError, JobError
from calmrl.workflows import compare, evaluate
from calmrl.workflows.compare import jobs as jobs_module
from calmrl.workflows.compare.plan import Job, config_for, plan, training_config, trials_of
from tests.support.own_collection import own_collection

SMALL = ["seeds=[0]", "steps=4", "trials=1", "width=4", "workers=1", "batch_size=64"]


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return own_collection(tmp_path_factory.mktemp("own") / "mine")


@pytest.fixture(scope="module")
def comparison(features, tmp_path_factory):
    """gram and triangle need an anchor, closed-form imputes nothing, calibrated does; ideal cannot be had."""
    config = config_for(features, [*SMALL, "methods=[gram, closed-form, calibrated, ideal]"])
    return compare(config, tmp_path_factory.mktemp("runs") / "out", keep="best")


def test_nothing_is_hidden_and_every_modality_has_its_own_name(comparison):
    content = json.loads((comparison.directory / "results.json").read_text())
    assert list(content["meta"]["settings"]) == ["as-is"]
    rows = [row for row in content["rows"] if row["task"] == "average" and row["metric"] == "R@1"]
    assert {row["method"] for row in rows} == {"gram", "closed-form", "calibrated"}
    assert all(np.isfinite(row["value"]) for row in content["rows"])
    patterns = content["meta"]["patterns"]["as-is"]
    assert sum(pattern["rows"] for pattern in patterns) == 400
    assert any(len(pattern["has"]) < 3 for pattern in patterns)


def test_how_complete_training_rows_are_is_counted(comparison):
    meta = json.loads((comparison.directory / "results.json").read_text())["meta"]
    held, rows = meta["patterns"]["as-is"], meta["training"]["as-is"]
    assert rows["rows"] == 400
    assert rows["missing"] == pytest.approx(1 - sum(len(p["has"]) * p["rows"] for p in held) / 1200)
    assert rows["complete"] == pytest.approx(sum(p["rows"] for p in held if len(p["has"]) == 3) / 400)
    table = (comparison.directory / "tables" / "settings.csv").read_text()
    assert table.splitlines()[1].split(",")[1:3] == ["as-is", "400"]


def test_ideal_stays_where_it_is_true():
    config = CompareConfig.model_validate(
        {"kind": "compare", "source": {"dataset": "digits"}, "settings": {"m": {"kind": "mcar", "rate": 0.3}}}
    )
    planned = plan(config)
    assert "ideal" in {job.method for job in planned.jobs}
    assert any("ideal trains on" in note and "all of them complete" in note for note in planned.notes)


def test_every_data_set_has_an_anchor_of_its_own(features):
    """Also where one follows the other in the same process."""
    (_, changes), *_ = trials_of("gram", 4, 1)
    digits = CompareConfig.model_validate({"kind": "compare", "source": {"dataset": "digits"}})
    stamps = CompareConfig.model_validate({"kind": "compare", "source": {"dataset": "stamps"}})
    anchors = [
        training_config(config, "as-is", 0, changes).objective.anchor
        for config in (config_for(features, SMALL), digits, stamps)
    ]
    assert anchors == ["sound", "top_left", "text"]


def test_what_cannot_be_measured_is_left_out_with_a_sentence(tmp_path):
    """One complete test row: no imputation error, no pool; retrieval in the directions that there are."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(120, 3))
    z = {name: (shared @ rng.normal(size=(3, 5))).astype(np.float32) for name in ("a", "b", "c")}
    present = np.ones((120, 3), dtype=bool)
    present[91:, 2] = False
    z["c"][91:] = np.nan
    write_features(tmp_path / "f", z, present, split=["train"] * 70 + ["val"] * 20 + ["test"] * 30)
    config = config_for(tmp_path / "f", [*SMALL, "methods=[calibrated]"])
    made = compare(config, tmp_path / "out")
    sentences = [note for note in made.notes if "not measured for calibrated" in note]
    assert {"imputation", "coverage", "shift", "pool", "examples"} <= {
        word for note in sentences for word in note.replace(":", " ").split()
    }
    assert any("1 of 30 test rows have every modality" in note for note in sentences)
    tasks = {row["task"] for row in made.rows if row["metric"] == "R@1"}
    assert {task for task in tasks if not task.startswith("fused")} == {"a->b", "b->a", "average"}


@pytest.mark.parametrize(
    ("error", "kind"), [(InputError("too few rows"), InputError), (ZeroDivisionError("division"), JobError)]
)
def test_a_failure_names_its_job(features, tmp_path, monkeypatch, error, kind):
    def fails(config, job):
        raise error

    monkeypatch.setattr(jobs_module, "run_job", fails)
    config = config_for(features, [*SMALL, "methods=[gram]"])
    with pytest.raises(kind, match="data set mine, setting as-is, method gram, seed 0: ") as caught:
        jobs_module.run_jobs(config, tmp_path)
    if kind is JobError:
        assert "in fails" in str(caught.value)  # the traceback, as text
        assert "ZeroDivisionError" in str(caught.value)


def test_one_column_for_relevance(features, tmp_path):
    by_row = config_for(features, [*SMALL, "methods=[closed-form]", "measures=[]"])
    by_label = by_row.model_copy(update={"relevant_by": "labels"})
    one, other = (
        jobs_module.run_jobs(config, tmp_path, jobs=[Job("mine", "as-is", "closed-form", 0)])[0]
        for config in (by_row, by_label)
    )
    values = [
        {(row["task"], row["metric"]): row["value"] for row in next(iter(results.values())).rows}
        for results in (one, other)
    ]
    assert values[1]["average", "chance R@1"] > 5 * values[0]["average", "chance R@1"]
    assert values[1]["average", "R@1"] > values[0]["average", "R@1"]
    with pytest.raises(InputError, match='no column "colour"'):
        plan(by_row.model_copy(update={"relevant_by": "colour"}))
    assert any("every item with the labels of the query" in note for note in plan(by_label).notes)
    assert not any("what counts as found" in note for note in plan(by_row).notes)


def test_the_kept_model_is_the_one_that_was_compared(comparison):
    (row,), (folder,) = comparison.best, comparison.models
    assert load(folder).names == ("sound", "picture", "words")
    measured = {(one["task"], one["metric"]): one["value"] for one in evaluate(folder).rows}
    compared = {
        (one["task"], one["metric"]): one["value"]
        for one in comparison.rows
        if (one["method"], one["seed"]) == (row.job.method, row.job.seed)
    }
    assert measured["average", "R@1"] == pytest.approx(compared["average", "R@1"], abs=1.5)
    assert measured["average", "MRR"] == pytest.approx(compared["average", "MRR"], abs=1.0)
    assert any("relevant_by: text, or labels in the config" in remark for remark in evaluate(folder).remarks)
    evaluation = evaluate(folder, relevant_by="labels")
    assert not any("relevant_by" in remark for remark in evaluation.remarks)
    by_label = {(one["task"], one["metric"]): one["value"] for one in evaluation.rows}
    assert by_label["average", "chance R@1"] > 5 * measured["average", "chance R@1"]
    assert by_label["average", "R@1"] >= measured["average", "R@1"]


def test_from_the_command_line_to_a_model(features, tmp_path, calmrl, monkeypatch):
    """`compare FEATURES --json`, and then the command that it prints."""
    monkeypatch.chdir(tmp_path)
    words = ["compare", features, "--methods", "closed-form", "--seeds", "1", "--out", "runs/first", "--json"]
    code, out, err = calmrl(*words, "steps=4", "trials=1", "width=4", "workers=1", "measures=[]")
    assert code == 0, err
    assert {row["dataset"] for row in json.loads(out)["rows"]} == {"mine"}
    lines = err.replace("\\\n", "").splitlines()  # a long command is shown on two lines
    (command,) = (line.strip() for line in lines if line.strip().startswith("calmrl train "))
    _, *pasted = shlex.split(command)
    assert calmrl(*pasted)[0] == 0
    assert load(pasted[-1]).names == ("sound", "picture", "words")
    config = load_config(f"{pasted[-1]}/config.yaml", kind="train")
    assert (config.sources["data"].hide, config.sources["data"].resplit.test) == (None, 0)


def test_the_command_shows_the_whole_failure(features, tmp_path, calmrl, monkeypatch):
    def fails(config, job):
        raise ZeroDivisionError("by the job")

    monkeypatch.setattr(jobs_module, "run_job", fails)
    code, _, err = calmrl(
        "compare", features, "--methods", "gram", "--seeds", "1", "--out", tmp_path / "out", "workers=1"
    )
    assert code == 1
    assert "data set mine, setting as-is, method gram, seed 0: by the job" in err
    assert "Traceback (most recent call last):\n" in err
