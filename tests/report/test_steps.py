"""Curves over complete rows and missing rates, in the report and in the figure of the docs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from calmrl.report import results_of
from calmrl.report.comparison import step_curves

ROOT = Path(__file__).resolve().parents[2]


def content():
    """Two data sets, four methods, three seeds: complete rows 25 and 100 and as-is (300), rates 10 and 90 %."""
    rng = np.random.default_rng(0)
    levels = {"complete 25": {"complete": 25}, "complete 100": {"complete": 100}, "as-is": {}}
    levels |= {"alone 10 %": {"rate": 0.1}, "alone 90 %": {"rate": 0.9}}
    rows = []
    for dataset in ("stamps", "digits"):
        for setting, level in levels.items():
            for m, method in enumerate(("aligner", "gram", "pmrl", "contrastive", "vast")):
                for seed in range(3):
                    place = {"dataset": dataset, "setting": setting, "method": method, "seed": seed, "n": 100}
                    value = 20 - m + level.get("complete", 300) / 100 + rng.normal(0, 0.1)
                    rows.append(place | {"task": "average", "metric": "R@1", "value": value} | level)
                    rows.append(place | {"task": "average", "metric": "chance R@1", "value": 1.5} | level)
    patterns = [{"has": ["a", "b"], "rows": 300}, {"has": ["a"], "rows": 40}]
    meta = {
        "datasets": {name: {"rows": 500, "modalities": {"a": 3, "b": 4}} for name in ("stamps", "digits")},
        "patterns": {f"{name}, as-is": patterns for name in ("stamps", "digits")},
        "notes": ["stamps: something to know."],
    }
    return {"rows": rows, "meta": meta}


def script(name):
    """What a script of the docs defines; scripts find what they share beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        return runpy.run_path(str(ROOT / "docs" / f"{name}.py"))


@pytest.fixture(scope="module")
def results():
    return results_of({Path("results.json"): content()})


def test_as_is_is_the_last_point_over_complete_rows(results):
    frames = step_curves(results, "complete")
    assert set(frames) == {("stamps", "complete"), ("digits", "complete")}
    (first, *_) = frames["stamps", "complete"]
    assert first.label == "aligner"
    assert list(first.x) == [25, 100, 300]
    assert first.y == sorted(first.y)


def test_rates_are_percent(results):
    frames = step_curves(results, "rate")
    assert set(frames) == {("stamps", "alone"), ("digits", "alone")}
    assert list(frames["digits", "alone"][0].x) == [10, 90]


def test_the_figure_of_the_docs_shows_the_aligner_and_three_others(results):
    module = script("make_curves")
    frames = module["frames"](results)
    assert set(frames) == {"stamps", "digits"}
    for lines in (curves for by_axis in frames.values() for curves in by_axis.values()):
        assert [curve.label for curve in lines] == ["aligner", "gram", "pmrl", "contrastive"]
    figure = module["draw"](results)
    assert len(figure.axes) == 4


def test_the_tables_of_the_docs_have_intervals(results):
    module = script("make_curves")
    won = {"difference": 1.04, "low": -0.2, "high": 2.26, "p": 0.1}
    tests = {results.place_name(row.place): {"against": "gram", "methods": {"aligner": won}} for row in results.rows}
    head, _, aligner, *others, ahead = module["table"](results, tests, "stamps", "complete").splitlines()
    assert head == "| R@1 (%) | 25 | 100 | all |"
    assert aligner.startswith("| `aligner` | 20.")
    assert aligner.count("±") == 3
    assert [line.split("`")[1] for line in others] == ["gram", "pmrl", "contrastive"]
    assert ahead == "| ahead by | +1.0 (-0.2 to 2.3) | +1.0 (-0.2 to 2.3) | +1.0 (-0.2 to 2.3) |"
    assert module["table"](results, tests, "digits", "rate").startswith("| R@1 (%) | 10 % | 90 % |")
    marks = script("marked_tables")["marks"](module["PAGE"], "curves")
    assert sorted(marks) == [f"{dataset} {axis}" for dataset in ("emoji", "stamps") for axis in ("complete", "rate")]


def test_the_study_fills_a_table_of_the_results_and_the_classical_rows_one_of_each_page():
    module = script("make_study")
    marks = script("marked_tables")["marks"]
    assert [marks(page, "study") for page in module["PAGES"]] == [[], ["average"]]
    assert [marks(page, "classical") for page in module["PAGES"]] == [["average"], ["ahead"]]
    parts = [re.split("<!-- (?:classical: .*|end of classical) -->\n", page.read_text()) for page in module["PAGES"]]
    first, second = (table.splitlines() for _, table, _ in parts)
    assert second[:-1] == first


def test_a_comparison_without_ideal_has_a_line_on_the_best_other_row(results):
    module = script("make_study")
    tied = {"difference": 0.04, "low": -0.3, "high": 0.4, "p": 0.8}
    tests = {results.place_name(row.place): {"against": "gram", "methods": {"aligner": tied}} for row in results.rows}
    *table, last = module["ahead"](results, tests).splitlines()
    assert table == module["average"](results).splitlines()
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells == ["aligner - best of the others"] + 10 * ["+0.0 (-0.3 to +0.4), `gram`"]


def test_the_best_method_is_first_and_bold(results):
    table = script("make_study")["average"](results)
    names = [line.split("|")[1].strip() for line in table.splitlines()]
    assert names == ["R@1 (%)", "---", "aligner", "gram", "pmrl", "contrastive", "vast", "by chance"]
    assert table.splitlines()[2].count("**") == 2 * 10
    assert "**" not in "".join(table.splitlines()[3:])


@pytest.mark.parametrize("base", ["", "+identity"])
def test_the_tables_on_calibration(base):
    """R@1 of four directions and their mean, and the anchor shift; no row of the second stage has both a and c."""
    module = script("make_calibration")
    method = f"calmrl{base}"
    start = {f"{method}+init": 10.0, f"{method}+observed": 12.0, method: 11.0}
    rows = []
    for dataset in ("stamps", "emoji"):
        for name, value in start.items():
            for seed in range(2):
                place = {"dataset": dataset, "setting": "continual", "method": name, "seed": seed, "n": 9}
                values = {"a->b": value, "b->a": value + 2, "a->c": value - 4, "c->a": value - 6, "average": value - 2}
                rows += [place | {"task": task, "metric": "R@1", "value": one + seed} for task, one in values.items()]
                rows.append(place | {"task": "observed", "metric": "anchor_shift", "value": 0.5})
    rows += [
        row | {"task": "calibrated", "value": 0.4}
        for row in rows
        if row["metric"] == "anchor_shift" and row["method"] == method
    ]
    section = {"settings": {"continual": {"regime": "continual", "groups": [["a", "b"], ["b", "c"]]}}}
    test = {"methods": {method: {"difference": -1.0, "low": -1.5, "high": -0.5, "p": 0.001}}}
    meta = {
        "config": {
            "methods": list(start),
            "datasets": {"stamps": section, "emoji": {"settings": {"continual": {"regime": "joint"}}}},
        },
        "tests": {f"{dataset}, continual": test for dataset in ("stamps", "emoji")},
    }
    results = results_of({Path("results.json"): {"rows": rows}})
    found = module["found"](results, meta).splitlines()
    assert len(found) == 4
    assert "| 8.5 ± 6.4 | 10.5 ± 6.4 | 9.5 ± 6.4 | -1.00 (-1.50 to -0.50) | 0.001 |" in found[2]
    _, _, shown, hidden = module["forgotten"](results, meta).splitlines()
    assert shown.startswith("| stamps, continual | shown in stage two | 11.5 ±")
    assert hidden.startswith("| stamps, continual | not shown | 5.5 ±")
    anchors = module["anchors"](results, meta).splitlines()
    assert anchors[2].endswith("| 0.500 ± 0.000 | 0.500 ± 0.000 | 0.500 ± 0.000 | 0.400 ± 0.000 |")
    kind = "calibration from a base" if base else "calibration"
    assert script("marked_tables")["marks"](module["PAGE"], kind) == ["found", "forgotten", "anchors"]


def test_a_page_is_filled_between_its_marks(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- kind: a b -->\nold\n<!-- end of kind -->\n<!-- other: c -->\nkept\n<!-- end of other -->\n"
    )
    fill = script("marked_tables")["fill"]
    fill(page, "kind", lambda *words: "| " + " | ".join(words) + " |\nnew")
    assert page.read_text() == (
        "before\n<!-- kind: a b -->\n| a | b |\nnew\n<!-- end of kind -->\n<!-- other: c -->\nkept\n<!-- end of other -->\n"
    )
    assert capsys.readouterr().out == "page.md: 1 tables\n"
