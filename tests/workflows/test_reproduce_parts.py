"""Tables of the paper as pages, which run belongs to which row, and the tiny data and weights they are tried on."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from calmrl.data.features.feature_set import open_features
from calmrl.workflows.reproduce.bench import loss_curve, loss_rows
from calmrl.workflows.reproduce.run import Measured, _grouped, parts_of, to_markdown
from calmrl.workflows.reproduce.smoke import (
    CHARACTERS,
    SIZES,
    _features,
    _films,
    _sounds,
    official_name,
    write_checkpoint,
    write_tokenizer,
)
from calmrl.workflows.reproduce.tables import EXHIBITS, Cell, PaperTable, Value, direction, run_of


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


@pytest.mark.parametrize(
    ("name", "decimals", "cells"),
    [("table2", 2, None), ("table4", 0, None), ("table8", 2, 12), ("figure3", 5, 12), ("figure4", 3, 8), ("figure6", 3, 15),
     ("figure7", 3, 10), ("table1", 1, None), ("figure5", 1, None)],
)  # fmt: skip
def test_decimals_and_cells(name, decimals, cells):
    exhibit = EXHIBITS[name]()
    assert exhibit.decimals == decimals
    assert exhibit.name == name
    assert exhibit.notes
    if cells is not None:
        assert len(exhibit.cells) == cells


def test_averages_are_means_over_the_other_columns():
    for name in ("table1", "table2", "table7"):
        for cell in EXHIBITS[name]().cells:
            assert (len(cell.values) > 1) == (cell.column == "Avg."), (name, cell.row, cell.column)
    texts = [cell for cell in EXHIBITS["table4"]().cells if cell.values[0].metric == "texts"]
    assert [cell.published for cell in texts] == [180_000]
    maker = {cell.row: cell.values[0].maker for cell in EXHIBITS["table7"]().cells}
    assert maker["CalMRL"] == "calmrl-both"
    assert set(maker.values()) == {
        "calmrl-both",
        *(f"calmrl-both-{n}" for n in ("mvae", "mopoe", "smil", "knowledge_bridger")),
    }


# ---- pages


def made(cells, decimals=1, name="table9", notes=()) -> SimpleNamespace:
    exhibit = PaperTable(name, "a title", tuple(one.cell for one in cells), decimals)
    return SimpleNamespace(exhibit=exhibit, cells=cells, notes=list(notes))


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


def test_columns_of_one_data_set_stay_together():
    assert _grouped(["X a", "X b", "Y a", "Y b", "Z", "W"], 2) == [["X a", "X b"], ["Y a", "Y b"], ["Z", "W"]]
    assert _grouped(["X a", "X b", "X c", "Z"], 2) == [["X a", "X b", "X c"], ["Z"]]
    assert _grouped(["Z", "W", "V"], 6) == [["Z", "W", "V"]]
    cells = [measured("A", f"c{i}", None, 1.0) for i in range(7)]
    assert [len(part.columns) for part in parts_of(made(cells))] == [6, 1]
    cells = [measured("A", f"c{i}", 1.0, 1.0) for i in range(3)]
    assert [len(part.columns) for part in parts_of(made(cells))] == [2, 1]


# ---- losses


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


# ---- tiny data and weights


def test_tiny_weights_have_published_names(tmp_path):
    assert official_name("heads.vision.weight") == "contra_head_v.linear.weight"
    assert official_name("fused.va.bias") == "contra_head_va.bias"
    assert official_name("bert.encoder.x") == "multimodal_encoder.bert.encoder.x"
    write_checkpoint(tmp_path / "a" / "w.pt")
    state = torch.load(tmp_path / "a" / "w.pt", weights_only=True)
    write_checkpoint(tmp_path / "b" / "w.pt")
    again = torch.load(tmp_path / "b" / "w.pt", weights_only=True)
    assert all(torch.equal(state[name], again[name]) for name in state)
    matrices = torch.cat([value.flatten() for value in state.values() if value.ndim > 1 and value.is_floating_point()])
    assert float(matrices.std()) == pytest.approx(0.3, rel=0.05)
    assert float(matrices.mean()) == pytest.approx(0.0, abs=0.02)
    assert state["contra_head_v.linear.weight"].shape == (8, 16)
    assert state["vision_encoder.visual.pos_embed"].shape == (1, 5, 16)
    assert state["vision_frame_embedding"].shape == (1, 2, 16)
    assert SIZES == {
        "patch_size": 14, "vision_width": 16, "vision_layers": 1, "vision_heads": 2, "vision_mlp": 16, "audio_embed": 8,
        "audio_width": 16, "audio_layers": 1, "audio_heads": 2, "audio_mlp": 16, "audio_kernel": 6, "audio_groups": 4,
        "audio_buckets": 16, "audio_max_distance": 12, "vocabulary": 64, "text_width": 16, "text_layers": 1,
        "text_heads": 2, "text_mlp": 16, "positions": 80,
    }  # fmt: skip


def test_a_tokenizer_of_single_characters(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    write_tokenizer(tmp_path / "new" / "t")
    write_tokenizer(tmp_path / "new" / "t")  # into a folder that is there
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "new" / "t")
    assert tokenizer("ab")["input_ids"] == [2, 4, 5, 3]
    assert tokenizer("é")["input_ids"] == [2, 1, 3]
    assert len(CHARACTERS) + 4 <= SIZES["vocabulary"]


def test_annotations_of_six_and_four_items(tmp_path):
    media = tmp_path / "media"
    media.mkdir()
    for item in range(10):
        (media / f"{item}.mp4").write_bytes(b"film %d" % item)
        (media / f"{item}.wav").write_bytes(b"sound %d" % item)
    _films(tmp_path, media)
    _sounds(tmp_path, media)
    folders = (
        "msrvtt/videos",
        "didemo/videos",
        "vast150k/videos",
        "audiocaps/train",
        "audiocaps/test",
        "clotho/evaluation",
    )
    names = {folder: sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in folders}
    assert names["msrvtt/videos"] == [f"video{i}.mp4" for i in range(10)]
    assert names["didemo/videos"] == [f"film{i}.mp4" for i in range(6, 10)]
    assert names["vast150k/videos"] == [f"clip{i}.mp4" for i in range(6)]
    assert names["audiocaps/train"] == [f"sound{i}_0.wav" for i in range(6)]
    assert names["audiocaps/test"] == names_of("audiocaps", tmp_path)
    assert names["clotho/evaluation"] == [f"sound{i}.wav" for i in range(6, 10)]
    assert (tmp_path / "msrvtt/videos/video7.mp4").read_bytes() == b"film 7"
    assert (tmp_path / "audiocaps/test/sound8_0.wav").read_bytes() == b"sound 8"
    sentences = json.loads((tmp_path / "msrvtt/MSRVTT_data.json").read_text())["sentences"]
    assert sentences[:3] == [
        {"video_id": "video0", "caption": "a film 0"},
        {"video_id": "video0", "caption": "the film 0"},
        {"video_id": "video1", "caption": "a film 1"},
    ]
    assert (tmp_path / "msrvtt/MSRVTT_JSFUSION_test.csv").read_text().splitlines()[1] == "ret6,msr6,video6,a film 6"
    lines = (tmp_path / "audiocaps/dataset/train.csv").read_text().splitlines()
    assert (len(lines), lines[1]) == (7, "100,sound0,0,a sound 0")
    clotho = (tmp_path / "clotho/clotho_captions_evaluation.csv").read_text().splitlines()
    assert clotho[1] == "sound6.wav," + ",".join(f"caption {n} of 6" for n in range(5))


def names_of(collection, root):
    assert collection == "audiocaps"
    lines = (root / "audiocaps/dataset/test.csv").read_text().splitlines()[1:]
    return [f"{line.split(',')[1]}_0.wav" for line in lines]


def test_tiny_features_of_others(tmp_path):
    _features(tmp_path)
    home = tmp_path / "features" / "imagebind"
    assert sorted(path.name for path in home.iterdir()) == sorted(
        ["vggsound", "ucf101", "audioset", "audioset-classes", "esc50", "msrvtt", "audiocaps", "clotho"]
    )
    sounds = open_features(home / "esc50")
    assert sounds.names == ("audio", "text")
    assert sounds.split.tolist() == ["train"] * 8 + ["val"] * 2 + ["test"] * 4
    assert sounds.labels.tolist() == ["class 0", "class 1"] * 7
    assert sounds.z["audio"].shape == (14, 12)
    np.testing.assert_array_equal(sounds.z["text"][0], sounds.z["text"][2])
    assert not np.array_equal(sounds.z["text"][0], sounds.z["text"][1])
    several = open_features(home / "audioset").labels
    assert [list(map(str, label)) for label in several[:2]] == [["class 0"], ["class 1", "class 0"]]
    assert open_features(home / "msrvtt").split.tolist() == ["test"] * 4
