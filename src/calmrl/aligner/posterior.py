"""The posterior of a fitted aligner before it becomes a unit vector: how certain an item is, and queries with weights.

Given what a row has, Omega, the latents have mean E and covariance V = (I + sum_{m in Omega} J_m)^-1. Its certainty is

    certainty = |E|^2 / (|E|^2 + tr(P V)),    P = I - (I + sum over all m of J_m)^-1,    between 0 and 1:

the share of the squared length of its latents that the mean accounts for, counting variance only in the directions about
which the modalities say anything together (P is near I there and near 0 elsewhere). It is small for a row known by one
modality that says little (large V) and for a row that looks like the average of all (small E).

A query is a set of terms, each a value x_t of one modality m_t with a weight w_t > 0. The likelihood of each term is raised
to the power of its weight:

    E = (I + sum_t w_t J_{m_t})^-1 sum_t w_t (I + J_{m_t}) h_{m_t}(x_t).

With one term of weight 1 per modality this is the posterior mean that `Aligner.embed` scales to unit length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from calmrl.aligner.estimator import Aligner
from calmrl.aligner.space import NOTHING, direction
from calmrl.arrays import to_tensor
from calmrl.errors import InputError

ROWS = 4096  # embedded at once


@torch.no_grad()
def embed_with_certainty(
    aligner: Aligner, z: Mapping[str, np.ndarray], present: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (N, L) and certainties (N,), both float32; z and present name every modality of the aligner.

    A row without any modality, or whose modalities say nothing, gets a zero vector and certainty 0.
    """
    order = list(aligner.names_)
    informed = _informed(aligner)
    columns = [list(z).index(name) for name in order]
    vectors = np.zeros((len(present), aligner.space_.latent_dim), np.float32)
    certainty = np.zeros(len(present), np.float32)
    for start in range(0, len(present), ROWS):
        mask = np.asarray(present[start : start + ROWS])[:, columns]
        for pattern in np.unique(mask, axis=0):
            held = [m for m in range(len(order)) if pattern[m]]
            rows = np.flatnonzero((mask == pattern).all(axis=1)) + start
            if not held:
                continue
            heads = [_head(aligner, m, np.asarray(z[order[m]][rows])) for m in held]
            mean, covariance = _combine(aligner, held, [1.0] * len(held), heads)
            spread = float((informed * covariance).sum())  # the trace of a product of symmetric matrices
            length = mean.square().sum(dim=1)
            vectors[rows] = direction(mean).float().numpy()
            share = length / (length + spread).clamp(min=NOTHING**2)
            certainty[rows] = torch.where(length > NOTHING**2, share, 0.0).float().numpy()
    return vectors, certainty


@torch.no_grad()
def fuse(aligner: Aligner, terms: Sequence[tuple[str, np.ndarray, float]]) -> np.ndarray:
    """The posterior mean given (modality, feature vector, weight > 0) terms, scaled to unit length, (L,) float64."""
    for name, _, weight in terms:
        if name not in aligner.names_:
            raise InputError(f'the aligner has no modality "{name}"; it has {", ".join(aligner.modalities_)}')
        if not weight > 0:
            raise InputError(f"weights of fused terms must be positive; got {weight} for {name}")
    held = [aligner.names_.index(name) for name, _, _ in terms]
    heads = [_head(aligner, m, np.asarray(value)[None]) for m, (_, value, _) in zip(held, terms, strict=True)]
    mean, _ = _combine(aligner, held, [weight for _, _, weight in terms], heads)
    vector = direction(mean)[0]
    if not bool(vector.any()):
        raise InputError("the query says nothing: it equals the average of all items; ask with something else")
    return vector.numpy()


def _head(aligner: Aligner, m: int, values: np.ndarray) -> Tensor:
    """The posterior mean given modality m alone, (n, L) float64."""
    feature_map = aligner.feature_maps_[m]
    if values.shape[1] != len(feature_map.centre):
        raise InputError(
            f"{aligner.names_[m]} has width {values.shape[1]} but the aligner was fitted on width {len(feature_map.centre)}"
        )
    return aligner.head(m, to_tensor(values))


def _informed(aligner: Aligner) -> Tensor:
    """P, (L, L)"""
    eye = torch.eye(aligner.space_.latent_dim, dtype=torch.float64)
    return eye - torch.linalg.inv(eye + sum(J.double() for J in aligner.space_.information))


def _combine(aligner: Aligner, held: list[int], weights: list[float], heads: list[Tensor]) -> tuple[Tensor, Tensor]:
    """(mean (n, L), covariance (L, L))"""
    space = aligner.space_
    eye = torch.eye(space.latent_dim, dtype=torch.float64)
    information = [space.information[m].double() for m in held]
    total = eye + sum(weight * J for weight, J in zip(weights, information, strict=True))
    right = torch.zeros_like(heads[0])
    for weight, J, head in zip(weights, information, heads, strict=True):
        right += weight * head @ (eye + J)  # J is symmetric
    cholesky = torch.linalg.cholesky(total)
    return torch.cholesky_solve(right.T, cholesky).T, torch.cholesky_inverse(cholesky)
