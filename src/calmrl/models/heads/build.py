"""Heads from a config: standardised features, and a latent model to start from."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from calmrl._support.distributed import own_rows
from calmrl.data.loaders.feature_rows import FeatureRows, standardization
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.models.heads.model import Heads
from calmrl.models.heads.section import HeadsSection

INIT_ROWS = 50_000  # at most, to fit the latent model that heads start from


def build_heads(section: HeadsSection, data: Any, names: Sequence[str], seed: int, root: str | None = None) -> Heads:
    """The heads before their first step, for the rows of `data`."""
    torch.manual_seed(seed)
    sources = list(data.train.values())
    centres, maps = standardization(sources, section.standardize) if section.standardize else ({}, None)
    inner = None if maps is None else {name: matrix.shape[1] for name, matrix in maps.items()}
    heads = Heads(data.widths, section.width, hidden=section.hidden, inner=inner)
    if maps is not None:
        heads.standardize(centres, maps)
    if section.init == "latent":
        x, present = _standardized(heads, sources)
        if section.latent_rows == "complete":
            x, present = {name: rows[present.all(1)] for name, rows in x.items()}, present[present.all(1)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # few iterations are meant: more would overfit
            latent = GaussianImputer(
                section.width, prior=section.latent_prior, max_iter=section.latent_iterations, random_state=seed
            ).fit(*own_rows(x, present))
        heads.start_from(latent.as_heads())
    return heads


def _standardized(heads: Heads, sources: Sequence[FeatureRows]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Features of the training rows as the heads see them."""
    pace = max(1, -(-sum(map(len, sources)) // INIT_ROWS))
    parts, masks = [], []
    for source in sources:
        chosen = np.arange(0, len(source), pace)
        values = source.fetch(chosen, source.present[chosen], 0)
        parts.append({name: heads.standardized(name, x) for name, x in values.items()})
        masks.append(torch.from_numpy(source.present[chosen]))
    return {name: torch.cat([part[name] for part in parts]) for name in heads.names}, torch.cat(masks)
