"""The keys of `model: {kind: vast}`, and the sizes that are used without any."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from calmrl.paper import VastModel
from calmrl.paper.vast.section import VastSection, WeightsSection


def test_without_sizes_it_is_the_published_model() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.device("meta"):
        model = VastModel()
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_247_224_818


def test_files_to_start_from() -> None:
    assert WeightsSection(checkpoint="c").files() == {"checkpoint": "c"}
    assert WeightsSection(vision="v", text="t").files() == {"vision": "v", "text": "t"}
    for tower in ("vision", "audio", "text"):
        with pytest.raises(ValidationError, match="a checkpoint holds all encoders; leave out vision, audio and text"):
            WeightsSection(checkpoint="c", **{tower: "x"})


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("vision_width", None),
        ("vision_widht", r"no size is called vision_widht; did you mean vision_width\?"),
        ("frames", "no size is called frames"),  # a key of its own
    ],
)
def test_sizes_are_those_of_the_model(size: str, message: str | None) -> None:
    if message is None:
        assert VastSection(kind="vast", tokenizer="t", sizes={size: 8}).sizes == {size: 8}
    else:
        with pytest.raises(ValidationError, match=message):
            VastSection(kind="vast", tokenizer="t", sizes={size: 8})
