"""Heads from a config: standardised features, and a latent model to start from."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from calmrl._support.distributed import own_rows
from calmrl.data.loaders.feature_rows import FeatureRows, principal_axes, standardization
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.models.heads.kernel import UNIT_ROWS, fit_kernels
from calmrl.models.heads.model import Heads
from calmrl.models.heads.section import HeadsSection

INIT_ROWS = 50_000  # at most, to fit the latent model that heads start from


def build_heads(section: HeadsSection, data: Any, names: Sequence[str], seed: int, root: str | None = None) -> Heads:
    """The heads before their first step, for the rows of `data`."""
    torch.manual_seed(seed)
    sources = list(data.train.values())
    heads = _heads(section, data.widths, sources, seed)
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


def _heads(section: HeadsSection, widths: dict[str, int], sources: Sequence[FeatureRows], seed: int) -> Heads:
    """Heads with random weights on the form of the features that the section names."""
    shape: dict[str, Any] = {"hidden": section.hidden}
    shape["skip"] = section.hidden is not None and section.init == "latent"
    if section.standardize in UNIT_ROWS:
        lifts = fit_kernels(sources, section.standardize, seed)
        shape["inner"] = {name: lift.width for name, lift in lifts.items()}
        shape["kernels"] = {name: (len(lift.landmarks), lift.unit) for name, lift in lifts.items()}
        heads = Heads(widths, section.width, **shape)
        heads.compare_with(lifts)
    elif section.standardize is not None:
        centres, maps = standardization(principal_axes(sources), section.standardize)
        heads = Heads(widths, section.width, inner={name: m.shape[1] for name, m in maps.items()}, **shape)
        heads.standardize(centres, maps)
    else:
        heads = Heads(widths, section.width, **shape)
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
