"""Start a VastModel from the public files of its encoders."""

from pathlib import Path

from calmrl.errors import InputError
from calmrl.models.vast.beats import Beats
from calmrl.models.vast.checkpoints import Report, fill_beats, load_beats, load_bert, load_eva
from calmrl.models.vast.model import VastModel


def load_towers(
    model: VastModel,
    *,
    vision: str | Path | None = None,
    audio: str | Path | None = None,
    text: str | Path | None = None,
) -> list[Report]:
    """Load EVA-CLIP's vision part, BEATs and BERT, those that are named; heads and the matching head stay random.

    What shapes do not show of the audio tower (heads, groups, distances) must agree with the file's cfg.
    """
    reports = []
    if vision is not None:
        if model.vision is None:
            raise InputError("the model has no vision; leave its file out")
        reports.append(load_eva(model.vision, vision))
    if audio is not None:
        if model.audio is None:
            raise InputError("the model has no audio; leave its file out")
        there, _ = load_beats(audio)
        for what, value in _hidden_sizes(there).items():
            own = _hidden_sizes(model.audio)[what]
            if own != value:
                raise InputError(
                    f"{audio} has {what} {value} but the model was built with {own}; build it with {value}"
                )
        reports.append(fill_beats(model.audio, there.state_dict(), audio))
    if text is not None:
        if model.bert is None:
            raise InputError("the model has no text; leave its file out")
        reports.append(load_bert(model.bert, text))
    return reports


def _hidden_sizes(tower: Beats) -> dict[str, int]:
    return {
        "patch_size": tower.patch_size,
        "heads": tower.encoder.bias_of_distances().embedding_dim,
        "groups": tower.encoder.position_groups(),
        "max_distance": tower.max_distance,
    }
