"""The kernel features of the aligner, as a fixed first layer of heads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from calmrl.aligner.lift import Lift, fit_kernel
from calmrl.data.loaders.feature_rows import FeatureRows
from calmrl.errors import InputError

UNIT_ROWS = {"kernel": True, "kernel-plain": False}  # form of the features -> whether rows are scaled to length one
WHITENING = 0.5  # the first that the aligner tries
LANDMARKS = 2000  # rows that features compare with, at most


def fit_kernels(sources: Sequence[FeatureRows], how: str, seed: int) -> dict[str, Lift]:
    """Modality -> its kernel features, whitened by half, from the observed training rows; mean square 1."""
    generator = torch.Generator().manual_seed(seed)
    lifts = {}
    for j, name in enumerate(sources[0].names):
        x = torch.cat([_observed(source, j, name) for source in sources])
        if not len(x):
            raise InputError(f"no training row has {name}; leave it out of modalities, or add a source")
        lift = fit_kernel(x, UNIT_ROWS[how], generator, LANDMARKS)
        lifts[name] = replace(lift, projection=lift.projection * lift.scale(WHITENING))
    return lifts


def lifted_rows(source: FeatureRows, lifts: Mapping[str, Lift]) -> FeatureRows:
    """The same rows with their features computed, in memory; 0 where a modality is missing."""
    z = {}
    for j, name in enumerate(source.names):
        values = np.zeros((len(source), lifts[name].width), dtype=np.float32)
        values[source.present[:, j]] = lifts[name](_observed(source, j, name)).numpy()
        z[name] = values
    widths = {name: lift.width for name, lift in lifts.items()}
    return replace(source, z=z, rows=np.arange(len(source)), widths=widths)


def _observed(source: FeatureRows, j: int, name: str) -> torch.Tensor:
    """(n, d) modality j of the rows that have it."""
    only = np.zeros((int(source.present[:, j].sum()), len(source.names)), dtype=bool)
    only[:, j] = True
    return source.fetch(np.flatnonzero(source.present[:, j]), only, 0)[name]
