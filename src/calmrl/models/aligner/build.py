"""An aligner from a config: fitted on the training rows of all sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from calmrl._support.distributed import own_rows, world
from calmrl.aligner.estimator import Aligner
from calmrl.models.aligner.model import AlignedModel
from calmrl.models.aligner.section import AlignerSection


def build_aligner(
    section: AlignerSection, data: Any, names: Sequence[str], seed: int, root: str | None = None
) -> AlignedModel:
    """The aligner of the training rows; it has no step to make after that."""
    parts, masks, groups, relevant = [], [], [], []
    for name, rows in data.train.items():
        parts.append(rows.fetch(np.arange(len(rows)), rows.present, 0))
        masks.append(torch.from_numpy(rows.present))
        if section.groups is not None:
            groups += [f"{name}/{label}" for label in data.opened[name].column(section.groups)[rows.home]]
        if section.relevant is not None:
            relevant += list(data.opened[name].column(section.relevant)[rows.home])
    z, present = {name: torch.cat([part[name] for part in parts]) for name in names}, torch.cat(masks)
    arguments = section.model_dump(exclude={"kind", "groups", "relevant"})
    aligner = Aligner(**arguments, random_state=seed)
    size, rank = world()
    mine = {"groups": groups[rank::size] or None, "relevant": relevant[rank::size] or None}  # as `own_rows` takes them
    return AlignedModel.of(aligner.fit(*own_rows(z, present), **mine))
