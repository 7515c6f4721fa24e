"""The same aligner without some rows: what it would say of them, had it never seen them.

Everything that was chosen stays (features, latents, weights of the bases), so that one fold costs one fit and no search.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calmrl._support.arguments import seed_of
from calmrl.aligner.base import fit_bridge
from calmrl.aligner.choose import references_of
from calmrl.aligner.crossvalidation import Fold, Rows, folds_of
from calmrl.aligner.refine import refine_space
from calmrl.aligner.space import Candidate, head_maps

if TYPE_CHECKING:
    from calmrl.aligner.estimator import Aligner


@torch.no_grad()
def without_folds(
    aligner: Aligner, z: Mapping[str, np.ndarray], present: np.ndarray, groups: np.ndarray, folds: int
) -> Iterator[tuple[Aligner, np.ndarray]]:
    """(the aligner fitted on the other folds, rows of this fold) for every fold.

    Parameters
    ----------
    aligner : Aligner
    z, present
        Modalities of its own space: arrays (N, width), and which rows have them (N, k).
    groups : ndarray of int (N,)
        Rows with the same number are in one fold.
    folds : int
    """
    names = list(aligner.names_)
    if not names:  # only bases, which have not seen the rows
        yield aligner, np.arange(len(present))
        return
    order = [list(z).index(name) for name in names]
    mask = torch.from_numpy(np.asarray(present)[:, order])
    rows = Rows([torch.from_numpy(np.asarray(z[name], np.float64)) for name in names], mask, groups)
    home = folds_of(rows, folds, seed_of(aligner.random_state))
    for fold in range(folds):
        yield _fitted(aligner, rows.take(torch.from_numpy(np.flatnonzero(home != fold)))), np.flatnonzero(home == fold)


def _fitted(aligner: Aligner, rows: Rows) -> Aligner:
    """What was chosen, fitted on these rows."""
    seed, names, choice = seed_of(aligner.random_state), list(aligner.names_), aligner.choice_
    candidate = _chosen(aligner)
    fold = Fold(names, rows, rows.take(torch.arange(0)), seed, aligner.landmarks)
    space = fold.fit(candidate)
    maps, *_ = fold.mapped(candidate)
    features, _ = fold.whitened(candidate)
    if choice["refine_steps"]:
        space = refine_space(space, features, rows.present, choice["refine_steps"], seed)
    twin = copy.copy(aligner)
    twin.feature_maps_, twin.space_, twin.head_maps_ = maps, space, head_maps(maps, candidate.whitening, space)
    heads: list[Tensor | None] = [space.head(m, part).double() for m, part in enumerate(features)]
    mean = space.posterior(heads, rows.present, range(len(names)))
    twin.base_ = [
        base if base.bridge is None else replace(base, bridge=fit_bridge(base, rows, names, mean))
        for base in aligner.base_
    ]
    twin.references_ = references_of(twin, names, rows) if aligner.references_ else {}
    return twin


def _chosen(aligner: Aligner) -> Candidate:
    """The candidate that was fitted; `choice_` counts the latents of both of its parts together."""
    first = {part.name: aligner.choice_[part.name] for part in fields(Candidate) if part.name in aligner.choice_}
    first["latent_dim"] -= aligner.feature_maps_[0].beside
    if "second" not in first:
        return Candidate(**first)
    second = Candidate(**first["second"])
    assert aligner.space_ is not None, "there is no own space"
    most = sum(
        len(weight) - lift.beside for weight, lift in zip(aligner.space_.weight, aligner.feature_maps_, strict=True)
    )
    first["latent_dim"] -= min(second.latent_dim, most)
    return Candidate(**{**first, "second": second})
