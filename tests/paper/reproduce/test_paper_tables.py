"""Tables and figures of the paper as data: printed numbers, the run behind every row, and the configs of the runs."""

from __future__ import annotations

import numpy as np
import pytest

from calmrl.paper.reproduce.tables import (
    OBJECTIVES,
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

CELLS = {  # name -> (cells, of which the paper prints a number)
    "table1": (156, 136),
    "table2": (30, 30),
    "table3": (130, 130),
    "table4": (8, 8),
    "table5": (180, 180),
    "table6": (180, 180),
    "table7": (35, 35),
    "table8": (12, 12),
    "figure3": (12, 0),
    "figure4": (8, 0),
    "figure5": (48, 36),
    "figure6": (15, 0),
    "figure7": (10, 0),
}

PRINTED = [  # typed from the paper
    ("table1", "ImageBind", "MSR-VTT T→V", 36.8),
    ("table1", "ImageBind", "MSR-VTT V→T", None),
    ("table1", "InternVideo-L", "VATEX V→T", 69.5),
    ("table1", "LanguageBind", "Clotho T→A", 16.7),
    ("table1", "VAST", "Clotho A→T", 13.0),
    ("table1", "GRAM", "ActivityNet V→T", 48.3),
    ("table1", "TRIANGLE", "DiDeMo V→T", 52.7),
    ("table1", "VAST↑", "AudioCaps A→T", 53.3),
    ("table1", "PMRL↑", "Avg.", 53.8),
    ("table1", "CalMRL↑", "MSR-VTT V→T", 61.1),
    ("table1", "CalMRL↑", "Avg.", 54.2),
    ("table2", "ImageBind", "Avg.", 42.08),
    ("table2", "VAST↑", "ESC50", 59.99),
    ("table2", "CalMRL↑", "UCF101", 78.91),
    ("table3", "GRAM↑AT", "VATEX T→V", 58.1),
    ("table3", "TRIANGLE↑AT", "Clotho T→A", 16.6),
    ("table3", "CalMRL↑AT", "AudioCaps A→T", 54.1),
    ("table3", "VAST↑VT", "DiDeMo V→T", 55.1),
    ("table3", "CalMRL↑VT", "Avg.", 50.4),
    ("table4", "MSR-VTT", "train", 180_000),
    ("table4", "ActivityNet", "test", 3_987),
    ("table4", "AudioCaps", "test", 704),
    ("table5", "CalMRL↑", "MSR-VTT T→V", 83.0),
    ("table5", "GRAM↑AT", "VATEX T→V", 66.7),
    ("table5", "PMRL↑VT", "Clotho T→A", 38.7),
    ("table6", "VAST↑", "ActivityNet V→T", 88.5),
    ("table6", "PMRL↑AT", "Clotho A→T", 61.8),
    ("table6", "CalMRL↑VT", "VATEX V→T", 98.6),
    ("table7", "CalMRL", "Avg.", 54.8),
    ("table7", "Knowledge Bridger", "Clotho", 24.5),
    ("table8", "τ = 0.05", "Avg. R@1", 54.80),
    ("table8", "τ′ = 1", "Avg. R@1", 54.09),
    ("table8", "α = 0", "Avg. R@1", 53.30),
    ("figure5", "calibrated", "DiDeMo T→V", 57.5),
    ("figure5", "before", "MSR-VTT T→V", 55.1),
    ("figure5", "ideal", "MSR-VTT T→V", None),
]


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_every_table_has_all_its_cells(name):
    cells = PAPER_TABLES[name]().cells
    assert (len(cells), sum(cell.published is not None for cell in cells)) == CELLS[name]
    assert len({(cell.row, cell.column) for cell in cells}) == len(cells)


def test_all_tables_are_here():
    assert list(CELLS) == list(PAPER_TABLES)


@pytest.mark.parametrize(
    ("name", "decimals"),
    [("table1", 1), ("table2", 2), ("table4", 0), ("table8", 2), ("figure3", 5), ("figure4", 3), ("figure5", 1),
     ("figure6", 3), ("figure7", 3)],
)  # fmt: skip
def test_decimals(name, decimals):
    table = PAPER_TABLES[name]()
    assert (table.name, table.decimals) == (name, decimals)
    assert table.notes


@pytest.mark.parametrize(("name", "row", "column", "number"), PRINTED)
def test_printed_numbers(name, row, column, number):
    (cell,) = [cell for cell in PAPER_TABLES[name]().cells if (cell.row, cell.column) == (row, column)]
    assert cell.published == number


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


@pytest.mark.parametrize(
    ("row", "run"),
    [
        ("VAST", "vast-start"),
        ("GRAM", "gram-complete"),
        ("VAST↑", "vast-both"),
        ("CalMRL↑AT", "calmrl-at"),
        ("ImageBind", "imagebind"),
    ],
)
def test_the_run_of_a_printed_row(row, run):
    assert run_of(row) == run


def test_what_a_column_asks():
    assert direction("gram-both", "MSR-VTT T→V", "R@1") == Value("gram-both", "msrvtt", "text->all re-ranked", "R@1")
    assert direction("gram-both", "Clotho A→T", "R@5") == Value("gram-both", "clotho", "all->text re-ranked", "R@5")
    assert direction("imagebind", "Clotho A→T", "R@1") == Value("imagebind", "clotho", "audio->text", "R@1")


def test_runs_differ_in_what_they_are_named_after(tmp_path):
    configs = {name: config_of(run, tmp_path) for name, run in RUNS.items()}
    own = configs["calmrl-both"]
    assert (own.objective.temperature, own.objective.anchor_temperature, own.matching_weight) == (0.05, 0.1, 0.1)
    swept = configs["calmrl-both-tau-0.2"]
    assert (swept.objective.temperature, swept.objective.anchor_temperature, swept.matching_weight) == (0.2, 0.1, 0.1)
    assert configs["calmrl-both-alpha-0"].matching_weight == 0
    assert configs["calmrl-both-alpha-0"].objective == own.objective
    assert configs["calmrl-both-mvae"].calibration.imputer.method == "mvae"
    assert configs["gram-at"].calibration is None
    assert [stage.hide_one for stage in configs["gram-at"].stages] == [False, False]
    assert [stage.hide_one for stage in own.stages] == [True, False]
    assert configs["gram-at"].stages[1].sources == ["audiocaps"]
    assert configs["gram-complete"].stages[0].sources == ["vast150k"]
    assert configs["vast-start"].stages == []
    assert configs["pmrl-vt"].sources["msrvtt"].collection.media == {"vision": "msrvtt"}
    assert configs["pmrl-ideal"].sources["msrvtt"].collection.media == {}
    assert OBJECTIVES["calmrl"]["temperature"] == 0.05


def test_configs_of_runs(tmp_path):
    calmrl, vast, gram = (config_of(RUNS[name], tmp_path) for name in ("calmrl-both", "vast-both", "gram-complete"))
    assert (calmrl.method, vast.method, gram.method) == ("calmrl-printed", "vast", "gram")
    assert (calmrl.fused_weight, vast.fused_weight) == (0.0, 1.0)
    assert [stage.fresh_best for stage in calmrl.stages] == [False, True]
    assert [stage.hide_one for stage in gram.stages] == [False]
    assert vast.calibration is None
    assert calmrl.validation.every == 0
    assert config_of(RUNS["gram-classes"], tmp_path).root == str(tmp_path / "features/imagebind")
    assert RUNS["gram-classes"].collections == RUNS["vast-start"].collections == ()


def test_collections_of_runs():
    """Of MSR-VTT the video alone is used, except by the model that trains with all there is; files may be missing."""
    assert media_source("msrvtt") == {"collection": {"name": "msrvtt", "root": "msrvtt"}, "allow_missing": True}
    assert media_source("msrvtt", RUNS["calmrl-both"])["collection"]["media"] == {"vision": "msrvtt"}
    assert "media" not in media_source("msrvtt", RUNS["pmrl-ideal"])["collection"]


def test_values_that_are_swept(tmp_path):
    assert (swept_name("tau", 0.05), swept_name("tau", 0.1)) == ("calmrl-both", "calmrl-both-tau-0.1")
    assert (swept_name("alpha", 0.1), swept_name("tau2", 0.1)) == ("calmrl-both", "calmrl-both")
    swept = sorted(name for name in RUNS if name.startswith(("calmrl-both-tau", "calmrl-both-alpha")))
    assert swept == sorted(
        [f"calmrl-both-tau-{value}" for value in ("0.1", "0.2", "1")]
        + [f"calmrl-both-tau2-{value}" for value in ("0.05", "0.2", "1")]
        + [f"calmrl-both-alpha-{value}" for value in ("0", "0.5", "1")]
    )
    assert config_of(RUNS["calmrl-both-tau2-0.2"], tmp_path).objective.anchor_temperature == 0.2
