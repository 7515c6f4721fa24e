"""An aligner from a config: fitted on the training rows of all sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from calmrl._support.distributed import own_rows
from calmrl.aligner.estimator import Aligner
from calmrl.models.aligner.model import AlignedModel
from calmrl.models.aligner.section import AlignerSection


def build_aligner(
    section: AlignerSection, data: Any, names: Sequence[str], seed: int, root: str | None = None
) -> AlignedModel:
    """The aligner of the training rows; it has no step to make after that."""
    parts, masks, groups = [], [], []
    for name, rows in data.train.items():
        parts.append(rows.fetch(np.arange(len(rows)), rows.present, 0))
        masks.append(torch.from_numpy(rows.present))
        if section.groups is not None:
            groups += [f"{name}/{label}" for label in data.opened[name].column(section.groups)[rows.home]]
    z, present = {name: torch.cat([part[name] for part in parts]) for name in names}, torch.cat(masks)
    arguments = section.model_dump(exclude={"kind", "groups"})
    aligner = Aligner(**arguments, random_state=seed)
    return AlignedModel.of(aligner.fit(*own_rows(z, present), groups=groups or None))
