"""Tables and figures of the paper as data: printed numbers, the run behind every row, and the configs of the runs."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.paper.reproduce.tables import (
    PAPER_TABLES,
    RUNS,
    Value,
    config_of,
    direction,
    media_source,
    published,
    run_of,
    swept_name,
)

CELLS = {  # name -> (cells, of which the paper prints a number, decimals)
    "table1": (156, 136, 1), "table2": (30, 30, 2), "table3": (130, 130, 1), "table4": (8, 8, 0),
    "table5": (180, 180, 1), "table6": (180, 180, 1), "table7": (35, 35, 1), "table8": (12, 12, 2),
    "figure3": (12, 0, 5), "figure4": (8, 0, 3), "figure5": (48, 36, 1), "figure6": (15, 0, 3), "figure7": (10, 0, 3),
}  # fmt: skip
PRINTED = [  # typed from the paper; where averages are printed, another test finds a wrong digit
    ("table1", "ImageBind", "MSR-VTT V→T", None), ("table1", "InternVideo-L", "VATEX V→T", 69.5),
    ("table1", "LanguageBind", "Clotho T→A", 16.7), ("table1", "CalMRL↑", "Avg.", 54.2),
    ("table2", "CalMRL↑", "UCF101", 78.91), ("table3", "TRIANGLE↑AT", "Clotho T→A", 16.6),
    ("table4", "MSR-VTT", "train", 180_000), ("table4", "ActivityNet", "test", 3_987), ("table4", "AudioCaps", "test", 704),
    ("table5", "CalMRL↑", "MSR-VTT T→V", 83.0), ("table5", "GRAM↑AT", "VATEX T→V", 66.7),
    ("table5", "PMRL↑VT", "Clotho T→A", 38.7), ("table6", "VAST↑", "ActivityNet V→T", 88.5),
    ("table6", "PMRL↑AT", "Clotho A→T", 61.8), ("table6", "CalMRL↑VT", "VATEX V→T", 98.6),
    ("table7", "Knowledge Bridger", "Clotho", 24.5), ("table8", "τ = 0.05", "Avg. R@1", 54.80),
    ("table8", "τ′ = 1", "Avg. R@1", 54.09), ("table8", "α = 0", "Avg. R@1", 53.30),
    ("figure5", "calibrated", "DiDeMo T→V", 57.5), ("figure5", "before", "MSR-VTT T→V", 55.1),
    ("figure5", "ideal", "MSR-VTT T→V", None),
]  # fmt: skip


def test_every_table_has_all_its_cells():
    assert list(CELLS) == list(PAPER_TABLES)
    for name, numbers in CELLS.items():
        table = PAPER_TABLES[name]()
        printed = sum(cell.published is not None for cell in table.cells)
        assert (table.name, len(table.cells), printed, table.decimals) == (name, *numbers)
        assert len({(cell.row, cell.column) for cell in table.cells}) == len(table.cells)
        assert table.notes


def test_printed_numbers():
    for name, row, column, number in PRINTED:
        (cell,) = [cell for cell in PAPER_TABLES[name]().cells if (cell.row, cell.column) == (row, column)]
        assert cell.published == number, (name, row, column)


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table7"])
def test_printed_averages_are_those_of_the_printed_numbers(name):
    """A wrong digit shows."""
    for row, (*numbers, average) in published(name).rows.items():
        if average is not None:
            assert average == pytest.approx(np.mean(numbers), abs=0.051), row


def test_averages_are_means_over_the_other_columns():
    for name in ("table1", "table2", "table7"):
        for cell in PAPER_TABLES[name]().cells:
            assert (len(cell.values) > 1) == (cell.column == "Avg."), (name, cell.row, cell.column)
    texts = [cell for cell in PAPER_TABLES["table4"]().cells if cell.values[0].metric == "texts"]
    assert [cell.published for cell in texts] == [180_000]
    producer = {cell.row: cell.values[0].producer for cell in PAPER_TABLES["table7"]().cells}
    assert producer["CalMRL"] == "calmrl-both"
    assert set(producer.values()) == {
        "calmrl-both",
        *(f"calmrl-both-{n}" for n in ("mvae", "mopoe", "smil", "knowledge_bridger")),
    }


def test_the_run_of_a_row_and_what_a_column_asks():
    rows = {"VAST": "vast-start", "GRAM": "gram-complete", "VAST↑": "vast-both", "CalMRL↑AT": "calmrl-at"}
    assert {row: run_of(row) for row in rows} == rows
    assert run_of("ImageBind") == "imagebind"
    assert direction("gram-both", "MSR-VTT T→V", "R@1") == Value("gram-both", "msrvtt", "text->all re-ranked", "R@1")
    assert direction("gram-both", "Clotho A→T", "R@5") == Value("gram-both", "clotho", "all->text re-ranked", "R@5")
    assert direction("imagebind", "Clotho A→T", "R@1") == Value("imagebind", "clotho", "audio->text", "R@1")


def test_runs_differ_in_what_they_are_named_after(tmp_path):
    configs = {name: config_of(run, tmp_path) for name, run in RUNS.items()}
    own = configs["calmrl-both"]
    for name, values in {
        "calmrl-both": (0.05, 0.1, 0.1),
        "calmrl-both-tau-0.2": (0.2, 0.1, 0.1),
        "calmrl-both-tau2-0.2": (0.05, 0.2, 0.1),
        "calmrl-both-alpha-0": (0.05, 0.1, 0.0),
    }.items():
        one = configs[name]
        assert (one.objective.temperature, one.objective.anchor_temperature, one.matching_weight) == values
    assert configs["calmrl-both-mvae"].calibration.imputer.method == "mvae"
    assert [configs[name].method for name in ("calmrl-both", "vast-both", "gram-at")] == [
        "calmrl-printed",
        "vast",
        "gram",
    ]
    assert (own.fused_weight, configs["vast-both"].fused_weight) == (0.0, 1.0)
    assert configs["gram-at"].calibration is configs["vast-both"].calibration is None
    assert [stage.hide_one for stage in configs["gram-at"].stages] == [False, False]
    assert [(stage.hide_one, stage.fresh_best) for stage in own.stages] == [(True, False), (False, True)]
    assert own.validation.every == 0
    assert configs["gram-at"].stages[1].sources == ["audiocaps"]
    (stage,) = configs["gram-complete"].stages
    assert stage.sources == ["vast150k"]
    assert configs["vast-start"].stages == []
    assert configs["gram-classes"].root == str(tmp_path / "features/imagebind")
    assert RUNS["gram-classes"].collections == RUNS["vast-start"].collections == ()


def test_collections_of_runs():
    """Of MSR-VTT the video alone is used, except by the model that trains with all there is; files may be missing."""
    assert media_source("msrvtt") == {"collection": {"name": "msrvtt", "root": "msrvtt"}, "allow_missing": True}
    assert media_source("msrvtt", RUNS["calmrl-both"])["collection"]["media"] == {"vision": "msrvtt"}
    assert "media" not in media_source("msrvtt", RUNS["pmrl-ideal"])["collection"]


def test_values_that_are_swept():
    assert (swept_name("tau", 0.05), swept_name("tau", 0.1)) == ("calmrl-both", "calmrl-both-tau-0.1")
    assert (swept_name("alpha", 0.1), swept_name("tau2", 0.1)) == ("calmrl-both", "calmrl-both")
    swept = {name for name in RUNS if name.startswith(("calmrl-both-tau", "calmrl-both-alpha"))}
    values = {"tau": ("0.1", "0.2", "1"), "tau2": ("0.05", "0.2", "1"), "alpha": ("0", "0.5", "1")}
    assert swept == {f"calmrl-both-{name}-{value}" for name, some in values.items() for value in some}
