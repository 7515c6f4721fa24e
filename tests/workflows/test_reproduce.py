"""Tables and figures of the paper: printed numbers, what is needed, and all of them on tiny data."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from calmrl.data import write_features
from calmrl.errors import InputError
from calmrl.workflows import reproduce
from calmrl.workflows.reproduce.needs import CHECKPOINT, by_name_rows, needs_of
from calmrl.workflows.reproduce.tables import EXHIBITS, OBJECTIVES, RUNS, config_of, media_source, published

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


@pytest.mark.parametrize("name", EXHIBITS)
def test_every_table_has_all_its_cells(name):
    cells = EXHIBITS[name]().cells
    assert (len(cells), sum(cell.published is not None for cell in cells)) == CELLS[name]
    assert len({(cell.row, cell.column) for cell in cells}) == len(cells)


def test_all_tables_are_here():
    assert list(CELLS) == list(EXHIBITS)


@pytest.mark.parametrize(("name", "row", "column", "number"), PRINTED)
def test_printed_numbers(name, row, column, number):
    (cell,) = [cell for cell in EXHIBITS[name]().cells if (cell.row, cell.column) == (row, column)]
    assert cell.published == number


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table7"])
def test_printed_averages_are_those_of_the_printed_numbers(name):
    """A wrong digit shows."""
    for row, (*numbers, average) in published(name).rows.items():
        if average is not None:
            assert average == pytest.approx(np.mean(numbers), abs=0.051), row


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


def test_all_that_is_missing_is_said_before_anything_runs(tmp_path, calmrl):
    out = tmp_path / "out"
    code, stdout, err = calmrl("reproduce", "table1", "--root", tmp_path, "--out", out)
    assert (code, stdout) == (2, "")
    missing = [line.split()[1].rstrip(":") for line in err.splitlines() if line.startswith("  missing")]
    weights = ["pretrained_weights/bert/bert-base-uncased", CHECKPOINT]
    collections = ["vast150k", "msrvtt", "audiocaps", "didemo", "activitynet", "vatex", "clotho"]
    assert missing == [*weights, *collections]
    assert "MSRVTT_train.9k.csv" in err
    assert "TXH-mercury/VAST" in err
    assert not out.exists()


def test_usage(tmp_path, calmrl):
    assert calmrl("reproduce")[1] == calmrl("ls", "tables")[1]
    assert calmrl("reproduce")[1].splitlines()[0].startswith("figure3")
    code, _, err = calmrl("reproduce", "table9", "--smoke")
    assert code == 2
    assert "unknown table or figure" in err
    code, _, err = calmrl("reproduce", "table1", "--out", tmp_path / "out")
    assert code == 2
    assert "--root" in err


def test_classes_by_name(tmp_path):
    """Of several labels any counts; a class needs a row of its own, or the features of the classes."""
    text = np.eye(3, dtype="f4")
    audio = np.array([[1, 0.1, 0], [0, 1, 0.2], [0.1, 0, 1], [1, 0, 0.3]], dtype="f4")
    labels = [["a"], ["b"], ["a", "c"], ["b"]]
    of_items = np.stack([text[0], text[1], text[0] + text[2], text[1]])
    write_features(tmp_path / "set", {"audio": audio, "text": of_items}, labels=labels, split=["test"] * 4)
    with pytest.raises(InputError, match=r"'c'.*set-classes"):
        by_name_rows(tmp_path / "set")
    write_features(tmp_path / "set-classes", {"text": text}, labels=["a", "b", "c"])
    (measured,) = by_name_rows(tmp_path / "set")
    assert measured == {"task": "audio->class", "metric": "accuracy", "value": 75.0, "n": 4}  # the last one is "a"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """One output for all tables, so that runs are used again."""
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    return tmp_path_factory.mktemp("reproduced")


@pytest.mark.parametrize("name", EXHIBITS)
def test_every_table_on_tiny_data(name, out):
    made = reproduce(name, out=out, smoke=True)
    content = json.loads((out / f"{name}.json").read_text())
    assert len(content["cells"]) == CELLS[name][0]
    printed = [cell for cell in content["cells"] if cell["published"] is not None]
    assert len(printed) == CELLS[name][1]
    others = {"InternVideo-L", "LanguageBind"} | ({"ImageBind"} if name == "table1" else set())
    for cell in content["cells"]:
        if cell["row"] not in others:
            assert cell["ours"] is not None, cell
            assert (cell["difference"] is None) == (cell["published"] is None)
    text = (out / f"{name}.md").read_text()
    assert all(f"{cell['published']:,.{made.exhibit.decimals}f}" in text for cell in printed)
    assert all(path.is_file() for path in made.files)


def test_features_of_others_are_used_where_they_are(out):
    made = reproduce("table1", out=out, smoke=True)
    ours = {measured.cell.column: measured for measured in made.cells if measured.cell.row == "ImageBind"}
    assert ours["MSR-VTT T→V"].n == 4
    assert ours["DiDeMo T→V"].ours is None
    assert "features needed" in ours["DiDeMo T→V"].note
    assert any(note.startswith("internvideo, languagebind: features needed") for note in made.notes)


def test_finished_runs_are_kept_and_stopped_ones_go_on(out):
    reproduce("figure7", out=out, smoke=True)
    kept, stopped = out / "runs/vast-both/model/model.json", out / "runs/pmrl-both/model"
    before = kept.stat().st_mtime_ns
    shutil.rmtree(stopped)
    checked = reproduce("figure7", out=out, smoke=True, check_only=True)
    assert [name for name, finished in checked.runs.items() if not finished] == ["pmrl-both"]
    reproduce("figure7", out=out, smoke=True)
    assert kept.stat().st_mtime_ns == before
    assert (stopped / "model.json").is_file()


def test_a_run_with_other_settings_is_not_taken_for_this_one(out):
    reproduce("figure7", out=out, smoke=True)
    path = out / "runs/vast-both/config.yaml"
    text = path.read_text()
    path.write_text(text.replace("batch_size: 4", "batch_size: 5"))
    try:
        with pytest.raises(InputError, match="batch_size"):
            reproduce("figure7", out=out, smoke=True)
    finally:
        path.write_text(text)


def test_the_tiny_checkpoint_has_the_names_of_the_published_one(out):
    from calmrl.models import VastModel, load_vast
    from calmrl.workflows.reproduce.smoke import FRAMES, IMAGE, SIZES, WIDTH

    reproduce("table4", out=out, smoke=True)
    model = VastModel.from_sizes(width=WIDTH, frames=FRAMES, image_size=IMAGE, **SIZES)
    report = load_vast(model, out / "data" / CHECKPOINT)  # strict: nothing is missing or unknown
    assert report.unfilled == []
    assert report.unused == []


def test_what_is_there_is_counted(out):
    reproduce("table4", out=out, smoke=True)
    needs = {need.where: need for need in needs_of(EXHIBITS["table1"](), out / "data")}
    assert all(need.there for need in needs.values())
    assert "train 6 of 6 items with media, test 4 of 4 items with media" in str(needs["msrvtt"])


def test_public_downloads_may_lack_files():
    assert media_source("msrvtt") == {"collection": {"name": "msrvtt", "root": "msrvtt"}, "allow_missing": True}
