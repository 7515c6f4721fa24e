"""`calmrl evaluate` on the terminal: grouped tables, warnings, JSON."""

import json

from rich.console import Console
from typer.testing import CliRunner

from calmrl._support.text import to_terminal
from calmrl.cli import app
from calmrl.cli.runs import tables


def row(task, metric, value=100.0, n=306, **more):
    return {"dataset": "d", "task": task, "metric": metric, "value": value, "n": n, **more}


def test_metrics_that_are_computed_together_share_a_table():
    rows = [
        row("imputation a", "nmse", 0.5, 7), row("a->b", "mine", 2.0, 3), row("a->b", "R@1", 12.34, 1200),
        row("a->b", "R@5", 1.0, 1300), row("b->a", "R@1", 5.0, 4, dataset="e"), row("95", "coverage", 94.0, 999),
    ]  # fmt: skip
    found = tables(rows)
    assert [table.head for _, table in found] == [
        ["", "R@1", "R@5", "n"], ["", "nmse", "n"], ["", "coverage", "n"], ["", "mine", "n"],
    ]  # fmt: skip
    assert found[0][0].partition(":")[0] == "retrieval"
    assert found[0][1].lines == [["a->b", "12.3", "1.0", "1,300"], ["b->a", "5.0", "", "4"]]
    assert found[-1][0] == "other"


def test_names_of_directions_are_whole_in_80_columns(capsys):
    metrics = ["R@1", "R@5", "R@10", "MedR", "MRR", "chance R@1", "chance R@5", "chance R@10"]
    tasks = ["image->sound", "sound->image"]
    Console(width=80).print(to_terminal(tables([row(task, m) for task in tasks for m in metrics])[0][1]))
    printed = capsys.readouterr().out
    assert all(task in printed for task in tasks)
    assert printed.count("100.0") == 2 * len(metrics)


def test_a_recipe_that_imputes_worse_than_the_mean_says_so_in_train_and_evaluate(tmp_path):
    """What is printed as JSON is what is in the file."""
    out = tmp_path / "run"
    told = CliRunner().invoke(app, ["train", "stamps", "--out", str(out), "stages.0.epochs=2"])
    assert told.exit_code == 0, told.output
    result = CliRunner().invoke(app, ["evaluate", str(out), "--force", "--json"])
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content == json.loads((out / "results.json").read_text())
    assert any(row["metric"] == "R@1" for row in content["rows"])
    errors = {row["task"]: row["value"] for row in content["rows"] if row["metric"] == "nmse"}
    assert max(errors.values()) > 1  # the premise
    assert "imputing is worse than the column means" in result.stderr
    assert "imputing is worse than the column means" in told.stderr
