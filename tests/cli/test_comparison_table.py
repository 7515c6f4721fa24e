"""The table of a comparison on the terminal: columns, order, footer, and what is said below."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from calmrl.cli import compare as comparison_table
from calmrl.cli.compare import _folded, _next_steps, _spread, tables
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


@pytest.mark.parametrize(("settings", "columns"), [(4, [4]), (5, [4, 1]), (8, [4, 4])])
def test_as_many_tables_as_the_width_needs(settings, columns):
    found = results(*(row("a", 1.0, setting=f"s{j}") for j in range(settings)))
    made = tables(found)
    assert [len(table.columns) - 1 for table in made] == columns
    assert [column.min_width for column in made[0].columns[1:]] == [11] * columns[0]
    assert made[0].columns[0].max_width == 20


def test_what_stands_behind_a_mean():
    assert _spread(SimpleNamespace(seeds=[0])) == "one seed, so no spread"
    assert _spread(SimpleNamespace(seeds=[0, 1])) == "± 95 % over 2 seeds"


def test_a_long_command_is_folded():
    command = "calmrl train x --out " + "y" * (80 - 21)
    assert _folded(command) == command
    assert _folded(command + "y") == f"calmrl train x \\\n    --out {'y' * 60}"


@pytest.mark.parametrize(("best", "more"), [(0, None), (3, None), (4, 1)])
def test_next_steps(best, more, capsys):
    rows = [SimpleNamespace(command=f"calmrl train {j}") for j in range(best)]
    _next_steps(SimpleNamespace(models=[Path("o/models/a")], best=rows), Path("o"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == 'calmrl.load("o/models/a") opens the model of a best row'
    assert ("to train the best row on all rows, nothing hidden:" in lines) == bool(best)
    assert sum(line.startswith("  calmrl train") for line in lines) == min(best, 3)
    assert ("  ... and 1 more, for the configs in o/train" in lines) == (more == 1)
    assert " ".join(lines[-3:]).endswith(
        "open o/report.html to see it; tables for a paper are in o/tables; the numbers are in"
    )


@pytest.mark.parametrize("json", [False, True])
def test_everything_is_shown(json, capsys, tmp_path, monkeypatch):
    (tmp_path / "results.json").write_text('{"rows": []}')
    found = results(row("a", 1.0))
    made = SimpleNamespace(results=found, notes=["a note"], words=["some words " * 20], models=[], best=[])
    asked = {}

    def compare(config, out, **options):
        asked.update(options)
        options["progress"](1, 2, "")
        return made

    import calmrl.workflows

    monkeypatch.setattr(calmrl.workflows, "compare", compare)
    config = SimpleNamespace(table=["R@1"], seeds=[0])
    extra_jobs = {"x": int}
    assert (
        comparison_table.compare_and_show(config, tmp_path, "cmd", keep="best", json=json, extra_jobs=extra_jobs)
        is made
    )
    del asked["progress"]
    assert asked == {"command": "cmd", "keep": "best", "extra_jobs": extra_jobs}
    out, err = capsys.readouterr()
    assert out == ('{"rows": []}\n' if json else f"{tmp_path}/results.json\n")
    assert "average over all directions; one seed, so no spread" in err
    assert "a note" in err
    assert all(len(line) <= 80 for line in err.splitlines() if "words" in line)
