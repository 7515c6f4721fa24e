"""Tables: values against brute force on any subset of rows, marks by hand, and three forms that say the same."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calmrl.errors import InputError
from calmrl.metrics.significance import mean_interval
from calmrl.report import table_files, tables
from calmrl.report.tables import ResultCell

DIRECTIONS = ("text->image", "image->text")
# method -> values of three seeds; gram is the best baseline
VALUES = {
    "calmrl": [27.0, 27.6, 28.1],
    "ideal": [31.0, 31.5, 31.2],
    "vast": [20.0, 24.0, 22.0],
    "gram": [24.0, 24.5, 25.2],
    "closed-form": [22.0, 22.4, 23.3],
}


def rows_of(values=VALUES, tasks=DIRECTIONS, metrics=("R@1",), **more):
    return [
        {"dataset": "stamps", "method": m, "seed": s, "task": task, "metric": metric, "value": v + j, "n": 157, **more}
        for metric in metrics
        for j, task in enumerate(tasks)
        for m, seeds in values.items()
        for s, v in enumerate(seeds)
    ]


def lines(table, block=0):
    return {line.method: line for line in table.blocks[block][1]}


def read_csv(table):
    return list(csv.DictReader(io.StringIO(table_files.to_csv(table))))


def piped(text):
    return [[cell.strip() for cell in line[2:-2].split(" | ")] for line in text.splitlines() if line.startswith("| ")]


def test_marks_by_hand():
    table = tables.retrieval_table(rows_of())
    assert [column.name for column in table.columns] == ["text→image", "image→text", "Avg."]
    assert {column.n for column in table.columns} == {"157"}
    found = lines(table)
    assert list(found) == ["vast", "gram", "calmrl", "closed-form", "ideal"]
    first = {method: line.cells[0] for method, line in found.items()}
    assert [(cell.rank, cell.mark) for cell in first.values()] == [(0, ""), (2, ""), (1, "*"), (0, "†"), (0, "")]
    assert first["calmrl"].interval == mean_interval(VALUES["calmrl"])
    assert found["gram"].cells[2].interval.mean == pytest.approx(sum(VALUES["gram"]) / 3 + 0.5)


def test_latex_is_balanced_and_escaped():
    rows = rows_of({"50%_a&b": [1.0, 2.0], "calmrl": [3.0, 5.0]}, metrics=("R@1", "R@10"))
    text = table_files.to_latex(tables.retrieval_table(rows, metrics=("R@1", "R@10")), "tab:main")
    assert r"50\%\_a\&b" in text
    assert r"\cmidrule(lr){2-5}" in text
    assert r"\label{tab:main}" in text
    assert text.count("{") == text.count("}")
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
    assert r"\begin{tabular}{lcccccc}" in text
    for line in text.splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert len(re.findall(r"(?<!\\)&", line)) == 6, line
    assert not re.search(r"[→±–†]", text)
    kinds = [line.split(" ")[0] for line in text.splitlines() if line.startswith(("\\midrule", "50", r"\textbf"))]
    assert kinds == [r"\midrule", r"50\%\_a\&b", r"\midrule", r"\textbf{calmrl}"]


def test_rates_are_blocks_and_repeated_rows_an_error():
    table = tables.retrieval_table(rows_of(rate=0.1) + rows_of(rate=0.5))
    assert [title for title, _ in table.blocks] == ["10 % missing", "50 % missing"]
    with pytest.raises(InputError, match="two rows say R@1 of text->image for calmrl, seed 0"):
        tables.retrieval_table(rows_of() + rows_of())


def test_numbers_of_items_and_seeds_that_differ():
    rows = rows_of({"gram": [24.0], "calmrl": [27.0, 28.0]})
    rows[0]["n"] = 150
    table = tables.retrieval_table(rows)
    assert table.columns[0].n == "150–157"
    assert "n = 150–157" in table_files.to_markdown(table)
    assert "over 1–2 seeds" in table_files.to_markdown(table)
    assert "±" not in piped(table_files.to_markdown(table))[2][1]  # one seed has no interval
    assert lines(table)["calmrl"].cells[0].p is None
    assert "One seed, so no intervals" in table_files.to_markdown(tables.retrieval_table(rows_of({"gram": [24.0]})))


def test_meta_says_whose_a_method_is():
    meta = {"methods": {"vast": {"ours": True}, "gram": {"ideal": True}, "calmrl": {}, "closed-form": {"about": "x"}}}
    kinds = {m: line.kind for m, line in lines(tables.retrieval_table(rows_of(), meta)).items()}
    assert kinds == {"calmrl": "baseline", "closed-form": "baseline", "vast": "ours", "gram": "ideal", "ideal": "ideal"}


def test_lower_is_better_and_some_numbers_have_no_better():
    rows = rows_of(metrics=("MedR", "nmse", "coverage"))
    assert lines(tables.retrieval_table(rows, metrics=("MedR",)))["vast"].cells[0].rank == 1
    table = tables.measure_table(rows, ("nmse", "coverage"), "Errors")
    first = lines(table)["vast"].cells
    assert [column.metric for column in table.columns] == ["nmse", "coverage"] * 2
    assert [cell.rank for cell in first] == [1, 0, 1, 0]
    assert lines(table)["closed-form"].cells[0].mark == ""  # 22.6 against 22.0: not sure
    assert "22.000" in table_files.to_markdown(table)


def test_averages_need_every_direction():
    rows = [row for row in rows_of() if not (row["method"] == "gram" and row["task"] == "image->text")]
    found = lines(tables.retrieval_table(rows))
    assert found["gram"].cells[1] is None
    assert found["gram"].cells[2] is None
    body = {row[0]: row for row in piped(table_files.to_markdown(tables.retrieval_table(rows)))}
    assert body["gram"][2:] == ["-", "-"]
    only = tables.retrieval_table(rows_of(tasks=("average",)))
    assert [column.name for column in only.columns] == ["average"]


def test_several_datasets_and_the_short_form():
    rows = rows_of() + [
        {**row, "dataset": "digits", "value": row["value"] + 10} for row in rows_of(tasks=DIRECTIONS[:1])
    ]
    table = tables.average_table(rows)
    assert [(c.group, c.name) for c in table.columns] == [("stamps", ""), ("digits", ""), ("", "Avg.")]
    means = [cell.interval.mean for cell in lines(table)["gram"].cells]
    one = sum(VALUES["gram"]) / 3
    assert means == pytest.approx([one + 0.5, one + 10, one + 11 / 3])
    wide = tables.retrieval_table(rows)
    assert [c.group for c in wide.columns] == ["stamps", "stamps", "digits", ""]


def test_ablation():
    values = {
        "pmrl": [10.0, 11.0],
        "pmrl+latent": [12.0, 13.0],
        "pmrl+staged": [8.0, 8.5],
        "calmrl": [14.0, 15.0],
        "calmrl-printed": [9.0, 9.9],
    }
    table = tables.ablation_table(rows_of(values))
    assert [c.name for c in table.columns] == ["alone", "+ latent", "+ staged"]
    found = lines(table)
    assert list(found) == ["pmrl", "calmrl", "calmrl-printed"]
    assert [cell.interval.mean for cell in found["pmrl"].cells] == pytest.approx([11, 13, 8.75])
    assert found["calmrl"].cells[1:] == (None, None)
    sure = {"difference": 1.0, "low": 1.0, "high": 1.0, "p": 0.001}  # about "pmrl", not about "pmrl+latent"
    tested = {"tests": {"": {"against": "pmrl", "methods": {"calmrl": sure}}}}
    assert lines(tables.ablation_table(rows_of(values), tested)) == found


def test_sweeps():
    values = {f"calmrl tau'={at}": [20 - float(at), 21 - float(at)] for at in ("1", "0.05", "0.1")}
    rows = rows_of(values) + rows_of()
    (name, table), *others = tables.sweep_tables(rows).items()
    assert not others
    assert name == "tau'"
    assert [c.name for c in table.columns] == ["0.05", "0.1", "1"]
    assert [cell.rank for cell in lines(table)["calmrl"].cells] == [1, 2, 0]
    assert [cell.interval.mean for cell in lines(table)["calmrl"].cells] == pytest.approx([20.95, 20.9, 20])
    assert len(lines(tables.retrieval_table(rows))) == 5  # the sweep stays out of the main table
    words = tables.sweep_tables(rows_of({"a start=random": [1.0], "a start=latent": [2.0], "a start=3": [2.0]}))
    assert [c.name for c in words["start"].columns] == ["3", "latent", "random"]


def test_imputers_inside_calibrated_training():
    rows = rows_of(
        {
            "calibrated": [5.0, 6.0],
            "calibrated:mvae": [4.0, 5.1],
            "calibrated:smil": [3.0, 3.0],
            "calmrl-printed": [9.0, 9.0],
            "gram": [1.0, 1.0],
        }
    )
    found = lines(tables.generative_table(rows))
    assert {m: line.kind for m, line in found.items()} == {"mvae": "baseline", "smil": "baseline", "calibrated": "ours"}
    assert [line.cells[0].rank for line in found.values()] == [2, 0, 1]
    assert lines(tables.retrieval_table(rows))["calibrated:mvae"].kind == "ours"
    assert "generative" in tables.all_tables({"rows": rows})


def test_bootstraps_of_meta_mark_the_average():
    comparison = {"difference": 3.0, "low": 1.0, "high": 5.0, "p": 0.2}
    meta = {"tests": {"two": {"against": "gram", "methods": {"calmrl": comparison}}}}
    table = tables.retrieval_table(rows_of(setting="two"), meta)
    first, _, average = lines(table)["calmrl"].cells
    assert (first.mark, average.mark, average.p) == ("*", "", 0.2)
    assert lines(table)["closed-form"].cells[2].mark == "†"  # not in meta: by the test over seeds
    assert "paired bootstrap over test items" in table_files.to_markdown(table)
    assert "bootstrap" not in table_files.to_markdown(tables.retrieval_table(rows_of()))


def test_all_the_others_together_are_no_direction():
    rows = rows_of() + rows_of(tasks=("text->all", "text->all re-ranked", "image,text->speech"))
    assert [c.name for c in tables.retrieval_table(rows).columns] == ["text→image", "image→text", "Avg."]
    made = tables.all_tables({"rows": rows})["retrieval-re-ranked"]
    assert [c.name for c in made.columns] == ["text→all", "text→all re-ranked"]


def test_datasets_and_everything_at_once(tmp_path):
    meta = {
        "datasets": {
            "stamps": {"rows": 963, "modalities": {"image": 1280, "text": 384}, "source": "Tux & Paint"},
            "b": {},
        }
    }
    rows = rows_of(metrics=("R@1", "R@5", "R@10", "MedR", "nmse")) + rows_of(tasks=("text->image re-ranked",))
    written = table_files.write_tables({"rows": rows, "meta": meta}, tmp_path / "out")
    assert {path.stem for path in written} == {
        *(
            "retrieval-R1",
            "retrieval-R5",
            "retrieval-R10",
            "retrieval-MedR",
            "retrieval-re-ranked",
            "retrieval-average",
        ),
        *("imputation", "datasets"),
    }
    assert {path.suffix for path in written} == {".md", ".tex", ".csv"}
    assert "| stamps | 1280 | 384 | 963 | Tux \\& Paint |" in (tmp_path / "out/datasets.md").read_text()
    assert r"Tux \& Paint" in (tmp_path / "out/datasets.tex").read_text()
    assert list(csv.reader((tmp_path / "out/datasets.csv").open()))[1:] == [
        ["", "stamps", "1280", "384", "963", "Tux & Paint"],
        ["", "b", "", "", "", ""],
    ]
    assert tables.all_tables({"rows": []}) == {}
    again = table_files.write_tables({"rows": rows, "meta": meta}, tmp_path / "out")
    assert again == written


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_subset_of_rows_gives_right_cells(data):
    """Every cell is the interval over the seeds that have it, brute force; all forms have the same shape."""
    everything = rows_of(setting="a") + rows_of({"gram": [1.0, 5.0, 3.0], "calmrl": [1.0, 2.0, 9.0]}, setting="b")
    keep = data.draw(st.lists(st.booleans(), min_size=len(everything), max_size=len(everything)))
    rows = [row for row, there in zip(everything, keep, strict=True) if there]
    table = tables.retrieval_table(rows)
    for title, some in table.blocks:
        for line in some:
            for column, cell in zip(table.columns, line.cells, strict=True):
                tasks = [key[1] for key in column.keys]
                mine = [r for r in rows if r["setting"] == title and r["method"] == line.method]
                there = [task for task in tasks if any(r["task"] == task for r in rows if r["setting"] == title)]
                seeds = [{r["seed"]: r["value"] for r in mine if r["task"] == task} for task in there]
                shared = sorted(set.intersection(*map(set, seeds))) if seeds else []
                if not shared:
                    assert cell is None
                else:
                    assert isinstance(cell, ResultCell)
                    values = [sum(part[s] for part in seeds) / len(seeds) for s in shared]
                    assert cell.interval == pytest.approx(mean_interval(values))
    n_lines = sum(len(some) for _, some in table.blocks)
    assert len(read_csv(table)) == n_lines
    assert len(piped(table_files.to_markdown(table))) == 2 + n_lines + len(table.blocks)
    assert table_files.to_latex(table).count(r"\midrule") >= 2 * len(table.blocks)
