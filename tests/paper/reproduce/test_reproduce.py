"""`reproduce`: what is needed, what is written, and every table and figure on tiny data."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from calmrl.errors import InputError
from calmrl.paper import VastModel, load_vast
from calmrl.paper.reproduce import PAPER_TABLES, reproduce
from calmrl.paper.reproduce.needs import CHECKPOINT, Need, check, needs_of
from calmrl.paper.reproduce.run import Measured, ReproductionRun, loss_curve, loss_rows, measure, parts_of, to_markdown
from calmrl.paper.reproduce.tables import Cell, PaperTable, Value


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": "data", "smoke": True}, "`smoke=True` makes its own data; leave out `root`"),
        ({}, "name the folder of the data with `root`, or pass `smoke=True`"),
        (
            {"root": "data", "device": "cuda:1"},
            'device is "auto" or "cpu"; got \'cuda:1\'; choose a GPU with CUDA_VISIBLE',
        ),
    ],
)
def test_what_does_not_go_together(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        reproduce("table4", out=tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("device", "gpu", "expected"), [("cpu", True, "cpu"), ("auto", False, "cpu"), ("auto", True, "cuda")]
)
def test_devices(tmp_path, monkeypatch, device, gpu, expected):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr("calmrl.paper.reproduce.run.ReproductionRun", lambda *where, device, **how: seen.append(device) or
                        ReproductionRun(*where, device=device, **how))  # fmt: skip
    reproduce("table4", tmp_path, tmp_path / "out", device=device, check_only=True)
    assert seen == [expected]


def test_needs_in_words():
    assert str(Need("x", True, "about")) == "there    x: about"
    with pytest.raises(InputError, match="table4 needs what is not there:\n  missing  b: y"):
        check(PAPER_TABLES["table4"](), [Need("a", True, "x"), Need("b", False, "y")])
    check(PAPER_TABLES["table4"](), [Need("a", True, "x")])


def test_needs_that_are_not_there(tmp_path, monkeypatch):
    def about(name, where):
        (need,) = [need for need in needs_of(PAPER_TABLES[name](), tmp_path) if need.where == where]
        assert not need.there
        return need.about

    assert "media of train and test (MSR-VTT" in about("table1", "msrvtt")
    (tmp_path / "msrvtt").mkdir()
    assert "; needed: MSRVTT" in about("table1", "msrvtt")
    features = "features of ImageBind on esc50, with labels and the names of the classes as text"
    assert about("table2", "features/imagebind/esc50") == features
    monkeypatch.setattr("calmrl.paper.reproduce.needs.find_spec", lambda name: None if name == "av" else name)
    assert about("table1", "the package av").startswith("not installed; pip install")


def test_cells_are_means_of_their_values():
    def cell(*producers):
        return Cell("row", "column", None, tuple(Value(producer, "msrvtt", "task", "R@1") for producer in producers))

    found = {"gram-both": {"value": 3.0, "n": 7}, "pmrl-both": {"value": 5.0, "n": 8}}
    experiments = SimpleNamespace(value=lambda value: found.get(value.producer))
    cells = (cell("gram-both"), cell("gram-both", "pmrl-both"), cell("imagebind"), cell("vast-start"))
    cells = measure(PaperTable("table9", "a title", cells), experiments)
    assert [(one.ours, one.n) for one in cells] == [(3.0, 7), (4.0, None), (None, None), (None, None)]
    assert [one.note for one in cells[2:]] == [
        "features needed: see docs/how-to/reproduce.md",
        "these test rows do not allow it",
    ]


def made(cells, decimals=1, name="table9", notes=()) -> SimpleNamespace:
    table = PaperTable(name, "a title", tuple(one.cell for one in cells), decimals)
    return SimpleNamespace(table=table, cells=cells, notes=list(notes))


def measured(row, column, published, ours):
    return Measured(Cell(row, column, published, ()), ours)


def test_a_page_in_markdown():
    cells = [measured("A", "X R@1", 1234.5, 1230.25), measured("A", "Y", None, 2.0), measured("B", "X R@1", 3.0, None)]
    assert to_markdown(made(cells, notes=["a note"])) == (
        "# Table 9 of the paper: a title\n\n"
        "| | X R@1<br>paper | X R@1<br>ours | X R@1<br>diff. | Y<br>paper | Y<br>ours | Y<br>diff. |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| A | 1,234.5 | 1,230.2 | −4.2 | – | 2.0 | – |\n"
        "| B | 3.0 | – | – |  |  |  |\n"
        "\n- a note\n"
    ).replace("| | X", "|  | X")
    plain = to_markdown(made([measured("A", "X", None, 2.0)], name="figure3"))
    assert plain.startswith("# Figure 3 of the paper: a title\n\n|  | X<br>ours |\n")
    assert cells[0].difference == pytest.approx(-4.25)
    assert (cells[1].difference, cells[2].difference) == (None, None)


@pytest.mark.parametrize(
    ("columns", "published", "pieces"),
    [
        (["X a", "X b", "Y a", "Y b", "Z", "W"], 1.0, [["X a", "X b"], ["Y a", "Y b"], ["Z", "W"]]),
        (["X a", "X b", "X c", "Z"], 1.0, [["X a", "X b", "X c"], ["Z"]]),
        (["Z", "W", "V"], None, [["Z", "W", "V"]]),
        ([f"c{i}" for i in range(7)], None, [[f"c{i}" for i in range(6)], ["c6"]]),
    ],
)
def test_columns_of_one_data_set_stay_together(columns, published, pieces):
    cells = [measured("A", column, published, 1.0) for column in columns]
    assert [part.columns for part in parts_of(made(cells))] == pieces


def test_losses_of_the_last_stage(tmp_path):
    def record(stage, step, loss, kind="train"):
        return json.dumps({"kind": kind, "step": step, "stage": stage, "loss": loss}) + "\n"

    lines = [record("one", 1, 9.0), record("two", 2, 5.0), record("two", 3, None), record("two", 4, 3.0)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + record("two", 4, 1.0, "validation"))
    assert loss_curve(tmp_path) == [(2, 5.0), (4, 3.0)]
    assert [(one["metric"], one["value"], one["n"]) for one in loss_rows(tmp_path)] == [
        ("first", 5.0, 2),
        ("last", 3.0, 4),
    ]
    (tmp_path / "metrics.jsonl").write_text("")
    assert loss_rows(tmp_path) == []


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """One output for all tables, so that runs are used again."""
    pytest.importorskip("av", reason="PyAV (calmrl[media]) is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    return tmp_path_factory.mktemp("reproduced")


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_every_table_on_tiny_data(name, out):
    made = reproduce(name, out=out, smoke=True)
    content = json.loads((out / f"{name}.json").read_text())
    table = PAPER_TABLES[name]()
    assert len(content["cells"]) == len(table.cells)
    printed = [cell for cell in content["cells"] if cell["published"] is not None]
    assert len(printed) == sum(cell.published is not None for cell in table.cells)
    others = {"InternVideo-L", "LanguageBind"} | ({"ImageBind"} if name == "table1" else set())
    for cell in content["cells"]:
        if cell["row"] not in others:
            assert cell["ours"] is not None, cell
            assert (cell["difference"] is None) == (cell["published"] is None)
    text = (out / f"{name}.md").read_text()
    assert all(f"{cell['published']:,.{made.table.decimals}f}" in text for cell in printed)
    assert all(path.is_file() for path in made.files)


def test_features_of_others_are_used_where_they_are(out):
    made = reproduce("table1", out=out, smoke=True)
    ours = {measured.cell.column: measured for measured in made.cells if measured.cell.row == "ImageBind"}
    assert ours["MSR-VTT T→V"].n == 4
    assert ours["DiDeMo T→V"].ours is None
    assert "features needed" in ours["DiDeMo T→V"].note
    assert any(note.startswith("internvideo, languagebind: features needed") for note in made.notes)


def test_finished_runs_are_kept_stopped_ones_go_on_and_other_settings_are_refused(out):
    reproduce("figure7", out=out, smoke=True)
    kept, stopped = out / "runs/vast-both/model/model.json", out / "runs/pmrl-both/model"
    before = kept.stat().st_mtime_ns
    shutil.rmtree(stopped)
    checked = reproduce("figure7", out=out, smoke=True, check_only=True)
    assert [name for name, finished in checked.runs.items() if not finished] == ["pmrl-both"]
    reproduce("figure7", out=out, smoke=True)
    assert kept.stat().st_mtime_ns == before
    assert (stopped / "model.json").is_file()
    path = out / "runs/vast-both/config.yaml"
    text = path.read_text()
    path.write_text(text.replace("batch_size: 4", "batch_size: 5"))
    try:
        with pytest.raises(InputError, match="batch_size"):
            reproduce("figure7", out=out, smoke=True)
    finally:
        path.write_text(text)


def test_what_the_smoke_test_makes(out):
    from calmrl.paper.reproduce.smoke import FRAMES, IMAGE, SIZES, WIDTH

    reproduce("table4", out=out, smoke=True)
    model = VastModel.from_sizes(width=WIDTH, frames=FRAMES, image_size=IMAGE, **SIZES)
    report = load_vast(model, out / "data" / CHECKPOINT)  # strict: nothing is missing or unknown
    assert report.unfilled == []
    assert report.unused == []
    needs = {need.where: need for need in needs_of(PAPER_TABLES["table1"](), out / "data")}
    assert all(need.there for need in needs.values())
    assert "train 6 of 6 items with media, test 4 of 4 items with media" in str(needs["msrvtt"])
