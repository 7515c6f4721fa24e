"""The model of the paper from a config: its sizes, and the public files of its encoders that it starts from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from calmrl.errors import InputError
from calmrl.paper.vast.beats import Beats
from calmrl.paper.vast.checkpoints import Report, fill_beats, load_beats, load_bert, load_eva, load_vast
from calmrl.paper.vast.eva import Interpolation
from calmrl.paper.vast.model import VastModel
from calmrl.paper.vast.section import VastSection


def build_vast(section: VastSection, data: Any, names: Sequence[str], seed: int, root: str | None = None) -> VastModel:
    """The model with random weights, or those of the files that the section names; `data.notes` says what was not used."""
    torch.manual_seed(seed)
    model = VastModel.from_sizes(
        names=names,
        width=section.width,
        frames=section.frames,
        slices=section.slices,
        image_size=section.image_size,
        matching=section.matching,
        first_stage=section.first_stage,
        negatives=section.negatives,
        **section.sizes,  # type: ignore[arg-type]  # their names are checked, their types are numbers
    )
    files: dict[str, Any] = {name: Path(root or ".") / path for name, path in section.weights.files().items()}
    how: dict[str, Any] = {"tolerant": section.weights.tolerant}
    how |= {"interpolation": section.weights.interpolation} if section.weights.interpolation else {}
    if "checkpoint" in files:
        reports = [load_vast(model, files["checkpoint"], **how)]
    else:
        reports = load_towers(model, **files, **how, keep=list(section.sizes))
    data.notes += [line for report in reports for line in report.lines()]
    if not reports:
        data.notes.append("no weights are named: the encoders start from random ones")
    model.set_checkpointing(section.gradient_checkpointing)
    return model


def load_towers(
    model: VastModel,
    *,
    vision: str | Path | None = None,
    audio: str | Path | None = None,
    text: str | Path | None = None,
    tolerant: bool = False,
    interpolation: Interpolation = "bicubic",
    keep: Sequence[str] = (),
) -> list[Report]:
    """Load EVA-CLIP's vision part, BEATs and BERT, those that are named; heads and the matching head stay random.

    What shapes do not show of the audio tower (heads, groups, distances) must agree with the file's cfg. Its layer drop
    and gradient decay become those of the cfg, unless `keep` names them (audio_layer_drop, audio_gradient_decay).
    """
    files, towers = (vision, audio, text), (model.vision, model.audio, model.bert)
    for what, file, tower in zip(("vision", "audio", "text"), files, towers, strict=True):
        if file is not None and tower is None:
            raise InputError(f"the model has no {what}; leave its file out")
    reports = []
    if vision is not None and model.vision is not None:
        reports.append(load_eva(model.vision, vision, tolerant=tolerant, interpolation=interpolation))
    if audio is not None and model.audio is not None:
        there, _ = load_beats(audio)
        for what, value in _hidden_sizes(there).items():
            own = _hidden_sizes(model.audio)[what]
            if own != value:
                raise InputError(
                    f"{audio} has {what} {value} but the model was built with {own}; build it with {value}"
                )
        reports.append(fill_beats(model.audio, there.state_dict(), audio))
        reports[-1].changed += _training_rules(model, there, keep)
    if text is not None:
        reports.append(load_bert(model.bert, text, tolerant=tolerant))
    return reports


def _training_rules(model: VastModel, there: Beats, keep: Sequence[str]) -> list[str]:
    """Layer drop and gradient decay of a cfg into the model and its arguments; what was changed, in words."""
    assert model.audio is not None
    sentences = []
    for key, words in (("layer_drop", "layer drop"), ("gradient_decay", "gradient decay")):
        value = getattr(there, key)
        if f"audio_{key}" not in keep and getattr(model.audio, key) != value:
            setattr(model.audio, key, value)
            model.arguments[f"audio_{key}"] = value
            sentences.append(f"{words} {value}, as its cfg says")
    return sentences


def _hidden_sizes(tower: Beats) -> dict[str, int]:
    return {
        "patch_size": tower.patch_size,
        "heads": tower.encoder.bias_of_distances().embedding_dim,
        "groups": tower.encoder.position_groups(),
        "max_distance": tower.max_distance,
        "deep_norm": tower.deep_norm,
    }
