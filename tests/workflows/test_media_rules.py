"""What a source of raw media is read with: its own keys, else the rules of its collection, else those of the model."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from calmrl.config import load
from calmrl.config.schema.train import SourceSection
from calmrl.data.media.decoding import Decoding
from calmrl.errors import InputError
from calmrl.models.vast.section import VastSection
from calmrl.workflows import build_media
from calmrl.workflows.build_media import _check_shapes, _source_options, open_media, open_test_media

MODEL = VastSection(kind="vast", tokenizer="bert", frames=8, slices=1)


@pytest.mark.parametrize(
    ("layout", "resize", "slices", "tokens"),
    [
        ("msrvtt", "crop-flip", 1, 40),
        ("vast150k", "crop-flip", 1, 40),
        ("vatex", "squash", 1, 40),
        ("didemo", "squash", 2, 70),
        ("activitynet", "squash", 2, 70),
        ("audiocaps", "squash", 1, 40),
    ],
)
def test_a_source_has_the_rules_of_its_collection(layout: str, resize: str, slices: int, tokens: int) -> None:
    options = _source_options(SourceSection(manifest="a.json", layout=layout), MODEL)
    assert options["decoding"] == Decoding(resize=resize)
    assert (options["slices"], options["tokens"], options["frames"]) == (slices, {"text": tokens}, 8)
    own = SourceSection(manifest="a.json", layout=layout, resize="crop", slices=5, text_tokens=9, frames=3)
    options = _source_options(own, MODEL)
    assert (options["decoding"].resize, options["slices"], options["frames"]) == ("crop", 5, 3)
    assert options["tokens"] == {"text": 9}


def test_a_table_of_ones_own_has_the_rules_of_the_model() -> None:
    model = VastSection(kind="vast", tokenizer="bert", frames=4, slices=3, tokens={"text": 12, "subtitle": 30})
    options = _source_options(SourceSection(manifest="a.csv"), model)
    assert (options["frames"], options["slices"], options["tokens"]) == (4, 3, {"text": 12, "subtitle": 30})
    assert options["decoding"].resize == "crop"
    collection = _source_options(SourceSection(manifest="a.json", layout="didemo"), model)
    assert collection["tokens"] == {"text": 12, "subtitle": 30}  # what the config says wins


def test_sources_of_different_shapes_are_refused_before_they_meet() -> None:
    config = load("paper-vast")
    rows = {
        name: SimpleNamespace(name=name, frames=8, slices=1, tokens={"text": 40})
        for name in ("vast150k", "msrvtt", "audiocaps")
    }
    _check_shapes(config, rows)
    rows["audiocaps"].slices = 2
    with pytest.raises(InputError, match="stage missing mixes sources of different shapes"):
        _check_shapes(config, rows)


def test_test_frames_are_for_rows_that_do_not_train(tmp_path, monkeypatch) -> None:
    rows = [{"id": f"{i}", "text": f"number {i}", "split": part} for i, part in enumerate(("train", "val", "test"))]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tokenizer").mkdir()
    monkeypatch.setattr(build_media, "load_tokenizer", lambda name: object())
    changes = [f"root={tmp_path}", "model.weights.checkpoint=null", "model.tokenizer=tokenizer"]
    changes += ["sources={own: {manifest: items.jsonl, test_frames: 32}}", "modalities=[vision, text]"]
    config = load("paper-vast", [*changes, "stages=[{steps: 1}]"])
    train, validation, _ = open_media(config)
    assert (train["own"].frames, validation[0].frames) == (8, 32)
    assert open_test_media(config)["own"].frames == 32
    assert np.array_equal(train["own"].present, [[False, True]])
