"""`calmrl evaluate` on the terminal: grouped tables, warnings, JSON."""

import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from calmrl._support.text import to_terminal
from calmrl.cli import app
from calmrl.cli.evaluate import tables

ROWS = [
    {"dataset": "d", "task": "a->b", "metric": "R@1", "value": 12.34, "n": 40},
    {"dataset": "d", "task": "a->b", "metric": "R@5", "value": 50.0, "n": 40},
    {"dataset": "d", "task": "95", "metric": "coverage", "value": 94.0, "n": 999},
    {"dataset": "d", "task": "a->b", "metric": "nmse", "value": 0.5, "n": 40},
]


def test_metrics_that_are_computed_together_share_a_table():
    found = tables(ROWS)
    assert [table.head for _, table in found] == [
        ["", "R@1", "R@5", "n"],
        ["", "nmse", "n"],
        ["", "coverage", "n"],
    ]
    assert found[0][1].lines == [["a->b", "12.3", "50.0", "40"]]


def test_names_of_directions_are_whole_in_80_columns(capsys):
    metrics = ["R@1", "R@5", "R@10", "MedR", "MRR", "chance R@1", "chance R@5", "chance R@10"]
    tasks = ["image->sound", "sound->image"]
    rows = [{"dataset": "d", "task": task, "metric": m, "value": 100.0, "n": 306} for task in tasks for m in metrics]
    Console(width=80).print(to_terminal(tables(rows)[0][1]))
    printed = capsys.readouterr().out
    assert all(task in printed for task in tasks)
    assert printed.count("100.0") == 2 * len(metrics)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    config = ["stamps", "--out", str(out), "stages.0.epochs=2"]
    told = CliRunner().invoke(app, ["train", *config])
    assert told.exit_code == 0, told.output
    return out, told


def test_json_goes_to_stdout_and_tables_do_not(trained):
    out, _ = trained
    result = CliRunner().invoke(app, ["evaluate", str(out), "--force", "--json"])
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content == json.loads((out / "results.json").read_text())
    assert any(row["metric"] == "R@1" for row in content["rows"])


def test_a_recipe_that_imputes_worse_than_the_mean_says_so_in_train_and_evaluate(trained):
    out, told = trained
    result = CliRunner().invoke(app, ["evaluate", str(out), "--force", "--json"])
    errors = {row["task"]: row["value"] for row in json.loads(result.stdout)["rows"] if row["metric"] == "nmse"}
    assert max(errors.values()) > 1  # the premise
    assert "imputing is worse than the column means" in result.stderr
    assert "imputing is worse than the column means" in told.stderr
