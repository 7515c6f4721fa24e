"""The model of the paper from a config: its sizes, and the weights it starts from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from calmrl.models.vast.checkpoints import load_vast
from calmrl.models.vast.model import VastModel
from calmrl.models.vast.section import VastSection
from calmrl.models.vast.start import load_towers


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
        **section.sizes,  # type: ignore[arg-type]  # their names are checked, their types are numbers
    )
    files = {name: Path(root or ".") / path for name, path in section.weights.model_dump().items() if path}
    reports = [load_vast(model, files["checkpoint"])] if "checkpoint" in files else load_towers(model, **files)
    data.notes += [line for report in reports for line in report.lines()]
    if not reports:
        data.notes.append("no weights are named: the encoders start from random ones")
    model.set_checkpointing(section.gradient_checkpointing)
    return model
