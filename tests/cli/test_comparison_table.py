"""The table of a comparison on the terminal: columns, order, footer, and what is said below."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from calmrl.cli import compare as comparison_table
from calmrl.cli.compare import tables
from calmrl.report.results import results_of


def row(method, value, dataset="d", setting="s", seed=0, metric="R@1", **more):
    return {"dataset": dataset, "setting": setting, "method": method, "seed": seed, "task": "average", "metric": metric,
            "value": value, "n": 40} | more  # fmt: skip


def results(*rows):
    return results_of({Path("a/results.json"): {"rows": list(rows)}})


def cells(table):
    return [list(column.cells) for column in table.columns]


def test_methods_by_their_sum_and_the_ideal_last():
    found = results(
        row("low", 10.0), row("high", 30.0), row("high", 34.0, seed=1), row("pmrl-ideal", 90.0),
        row("low", 20.0, setting="t", n=1500), row("other", 5.0, task="a->b"), row("low", 3.0, metric="nmse"),
    )  # fmt: skip
    (table,) = tables(found)
    assert cells(table)[0] == ["high", "low", "pmrl-ideal"]
    assert cells(table)[1][1:] == ["10.0", "90.0"]
    assert cells(table)[1][0].startswith("32.0 ± ")
    assert cells(table)[2] == ["–", "20.0", "–"]
    assert [column.header for column in table.columns] == ["method", "s\nn = 40", "t\nn = 1,500"]
    assert not table.show_footer
    (errors,) = tables(found, "nmse")
    assert cells(errors) == [["low"], ["3.0"]]


def test_where_less_is_better_the_least_comes_first():
    (table,) = tables(results(row("a", 3.0, metric="nmse"), row("b", 2.0, metric="nmse")), "nmse")
    assert cells(table)[0] == ["b", "a"]


def test_chance_is_in_the_footer_and_data_sets_in_the_head():
    found = results(row("a", 10.0), row("a", 2.54, metric="chance R@1"), row("a", 20.0, dataset="e"))
    (table,) = tables(found)
    assert table.show_footer
    assert [column.footer for column in table.columns] == ["by chance", "2.5", ""]
    assert [column.header for column in table.columns][1:] == ["d\ns\nn = 40", "e\ns\nn = 40"]


def test_how_complete_training_rows_are_is_in_the_footer():
    training = {"s": {"rows": 200, "missing": 0.25, "complete": 0.004, "pairs": 0.5, "rarest": 3}}
    rows = [row("a", 10.0), row("a", 2.54, metric="chance R@1"), row("a", 20.0, setting="t")]
    (table,) = tables(results_of({Path("a/results.json"): {"rows": rows, "meta": {"training": training}}}))
    names, first, second = (column.footer.split("\n") for column in table.columns)
    assert names == ["by chance", "blocks missing", "complete rows", "pairs seen"]
    assert first == ["2.5", "25.0 %", "0.4 %", "50.0 %"]
    assert second == ["", "", "", ""]


@pytest.mark.parametrize(("settings", "columns"), [(4, [4]), (5, [4, 1]), (8, [4, 4])])
def test_as_many_tables_as_the_width_needs(settings, columns):
    found = results(*(row("a", 1.0, setting=f"s{j}") for j in range(settings)))
    made = tables(found)
    assert [len(table.columns) - 1 for table in made] == columns
    assert [column.min_width for column in made[0].columns[1:]] == [11] * columns[0]
    assert made[0].columns[0].max_width == 20


@pytest.fixture
def shown(tmp_path, capsys, monkeypatch):
    """What is printed about a comparison of these best rows, and what the workflow was asked."""
    import calmrl.workflows

    (tmp_path / "results.json").write_text('{"rows": []}')
    monkeypatch.chdir(tmp_path)

    def show(seeds=(0,), commands=(), models=(), **options):
        best = [SimpleNamespace(command=command) for command in commands]
        made = SimpleNamespace(
            results=results(row("a", 1.0)), notes=["a note"], words=["some words " * 20], models=models, best=best
        )
        asked = {}

        def compare(config, out, **options):
            asked.update(options)
            options["progress"](1, 2, "")
            return made

        monkeypatch.setattr(calmrl.workflows, "compare", compare)
        config = SimpleNamespace(table=["R@1"], seeds=list(seeds))
        assert comparison_table.compare_and_show(config, Path(), "cmd", **options) is made
        return *capsys.readouterr(), asked

    return show


@pytest.mark.parametrize(("seeds", "spread"), [([0], "one seed, so no spread"), ([0, 1], "± 95 % over 2 seeds")])
def test_what_stands_behind_a_mean(shown, seeds, spread):
    assert f"average over all directions; {spread}\n" in shown(seeds)[1]


LONG = "calmrl train x --out " + "y" * 57


@pytest.mark.parametrize(
    ("command", "lines"), [(LONG, f"  {LONG}\n"), (f"{LONG}y", f"  calmrl train x \\\n    --out {'y' * 58}\n")]
)
def test_a_long_command_is_folded(shown, command, lines):
    assert lines in shown(commands=[command])[1]


@pytest.mark.parametrize(("best", "more"), [(0, False), (3, False), (4, True)])
def test_next_steps(shown, best, more):
    lines = shown(commands=[f"calmrl train {j}" for j in range(best)], models=[Path("models/a")])[1].splitlines()
    assert 'calmrl.load("models/a") opens the model of a best row' in lines
    assert ("to train the best row on all rows, nothing hidden:" in lines) == bool(best)
    assert sum(line.startswith("  calmrl train") for line in lines) == min(best, 3)
    assert ("  ... and 1 more, for the configs in train" in lines) == more
    assert " ".join(lines[-2:]).endswith(
        "open report.html to see it; tables for a paper are in tables; the numbers are in:"
    )


@pytest.mark.parametrize(("json", "told"), [(False, "results.json\n"), (True, '{"rows": []}\n')])
def test_everything_is_shown(shown, json, told):
    extra_jobs = {"x": int}
    out, err, asked = shown(keep="best", json=json, extra_jobs=extra_jobs)
    del asked["progress"]
    assert asked == {"command": "cmd", "keep": "best", "extra_jobs": extra_jobs}
    assert out == told
    assert "a note" in err
    assert all(len(line) <= 80 for line in err.splitlines() if "words" in line)
