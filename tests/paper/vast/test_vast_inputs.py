"""The keys of `model: {kind: vast}`, and what a source is read with: its keys, the rules of its collection, the model's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from calmrl.config import load
from calmrl.config.schema.train import SourceSection
from calmrl.data.media.decoding import Decoding
from calmrl.errors import InputError
from calmrl.paper import VastModel
from calmrl.paper.vast.build import VastInputs
from calmrl.paper.vast.section import VastSection, WeightsSection
from calmrl.workflows.from_config import open_media, open_test_media

MODEL = VastSection(kind="vast", tokenizer="bert", frames=8, slices=1)


@pytest.mark.parametrize(
    ("layout", "resize", "slices", "tokens"),
    [
        ("msrvtt", "crop-flip", 1, 40), ("vast150k", "crop-flip", 1, 40), ("vatex", "squash", 1, 40),
        ("didemo", "squash", 2, 70), ("activitynet", "squash", 2, 70), ("audiocaps", "squash", 1, 40),
        ("clotho", "squash", 3, 40),
    ],
)  # fmt: skip
def test_a_source_has_the_rules_of_its_collection(layout: str, resize: str, slices: int, tokens: int) -> None:
    options = VastInputs(MODEL).options(SourceSection(manifest="a.json", layout=layout))
    assert options["decoding"] == Decoding(resize=resize)
    assert (options["slices"], options["tokens"], options["frames"]) == (slices, {"text": tokens}, 8)
    own = SourceSection(manifest="a.json", layout=layout, resize="crop", slices=5, text_tokens=9, frames=3)
    options = VastInputs(MODEL).options(own)
    assert (options["decoding"].resize, options["slices"], options["frames"]) == ("crop", 5, 3)
    assert options["tokens"] == {"text": 9}


def test_a_table_of_ones_own_has_the_rules_of_the_model() -> None:
    model = VastSection(kind="vast", tokenizer="bert", frames=4, slices=3, tokens={"text": 12, "subtitle": 30})
    options = VastInputs(model).options(SourceSection(manifest="a.csv"))
    assert (options["frames"], options["slices"], options["tokens"]) == (4, 3, {"text": 12, "subtitle": 30})
    assert options["decoding"].resize == "crop"
    collection = VastInputs(model).options(SourceSection(manifest="a.json", layout="didemo"))
    assert collection["tokens"] == {"text": 12, "subtitle": 30}  # what the config says wins


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A table of three texts, one of each part, and a tokenizer that is never asked."""
    rows = [{"id": f"{i}", "text": f"number {i}", "split": part} for i, part in enumerate(("train", "val", "test"))]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tokenizer").mkdir()
    monkeypatch.setattr("calmrl.paper.vast.build.load_tokenizer", lambda name: object())
    return tmp_path


def config(folder, sources: str, *more: str):
    changes = [f"root={folder}", "model.weights.checkpoint=null", "model.tokenizer=tokenizer", f"sources={sources}"]
    return load("paper-vast", [*changes, "modalities=[vision, text]", "stages=[{name: s, steps: 1}]", *more])


def test_test_frames_are_for_rows_that_do_not_train(folder) -> None:
    own = config(folder, "{own: {manifest: items.jsonl, test_frames: 32}}")
    train, validation, _ = open_media(own)
    assert (train["own"].frames, validation[0].frames) == (8, 32)
    assert open_test_media(own)["own"].frames == 32
    assert np.array_equal(train["own"].present, [[False, True]])


def test_a_row_without_a_split_trains_and_parts_are_given_by_the_source(folder) -> None:
    (folder / "plain.jsonl").write_text('{"id": "x", "text": "a"}\n{"id": "y", "text": "b", "split": ""}\n')
    train, validation, notes = open_media(
        config(folder, "{a: {manifest: plain.jsonl}, b: {manifest: plain.jsonl, part: val}}")
    )
    assert (list(train), len(train["a"]), [len(rows) for rows in validation]) == (["a"], 2, [2])
    assert notes == []


@pytest.mark.parametrize("stage", ["{name: s, steps: 1, sources: [a, c]}", "{name: s, steps: 1}"])
def test_sources_of_different_shapes_are_refused_before_they_meet(folder, stage: str) -> None:
    sources = "{a: {manifest: items.jsonl}, b: {manifest: items.jsonl}, c: {manifest: items.jsonl, slices: 2}}"
    open_media(config(folder, sources, "stages=[{name: s, steps: 1, sources: [a, b]}]"))
    with pytest.raises(InputError, match=r"stage s mixes sources of different shapes \(a: frames 8, slices 1, tokens"):
        open_media(config(folder, sources, f"stages=[{stage}]"))


def test_modalities_are_those_of_the_model_in_its_order() -> None:
    assert VastInputs(MODEL, ["text", "vision"]).names == ("vision", "text")
    assert VastInputs(MODEL).names == ("vision", "audio", "text", "subtitle")
    with pytest.raises(InputError, match='has no modality "smell"; it has vision, audio, text, subtitle'):
        VastInputs(MODEL, ["smell"])


def test_what_is_missing_is_in_one_error(folder) -> None:
    lacking = config(
        folder, "{own: {manifest: nowhere.csv, needs: make it}}", "model.weights.checkpoint=w.pt", "model.tokenizer=t"
    )
    with pytest.raises(InputError, match="something is missing") as wrong:
        open_media(lacking)
    assert [line.strip() for line in str(wrong.value).splitlines()[1:]] == [
        f"source own: no file {folder / 'nowhere.csv'}",
        "make it",
        f"model.weights.checkpoint: no file {folder / 'w.pt'}",
        f"model.tokenizer: no folder {folder / 't'}",
    ]


def test_without_sizes_it_is_the_published_model() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.device("meta"):
        model = VastModel.from_sizes()
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_247_224_818


def test_files_to_start_from() -> None:
    assert WeightsSection(checkpoint="c").files() == {"checkpoint": "c"}
    assert WeightsSection(vision="v", text="t").files() == {"vision": "v", "text": "t"}
    for tower in ("vision", "audio", "text"):
        with pytest.raises(ValidationError, match="a checkpoint holds all encoders; leave out vision, audio and text"):
            WeightsSection(checkpoint="c", **{tower: "x"})


def test_sizes_are_those_of_the_model() -> None:
    assert VastSection(kind="vast", tokenizer="t", sizes={"vision_width": 8}).sizes == {"vision_width": 8}
    for size, said in (
        ("vision_widht", r"no size is called vision_widht; did you mean vision_width\?"),
        ("frames", "no size is called frames"),  # a key of its own
    ):
        with pytest.raises(ValidationError, match=said):
            VastSection(kind="vast", tokenizer="t", sizes={size: 8})
