"""Where items lie: the posterior of what each has, in the own space and in those beside it, and how certain it is.

Given what a row has, Omega, the latents have mean E and covariance V = (I + sum_{m in Omega} J_m)^-1. Its place is E, scaled to
unit length. Its certainty is

    certainty = |E|^2 / (|E|^2 + tr(P V)),    P = I - (I + sum over all m of J_m)^-1,    between 0 and 1:

the share of the squared length of its latents that the mean accounts for, counting variance only in the directions about
which the modalities say anything together (P is near I there and near 0 elsewhere). It is small for a row known by one
modality that says little (large V) and for a row that looks like the average of all (small E).

A query is a set of terms, each a value x_t of one modality m_t with a weight w_t > 0. The likelihood of each term is raised
to the power of its weight:

    E = (I + sum_t w_t J_{m_t})^-1 sum_t w_t (I + J_{m_t}) h_{m_t}(x_t).

With one term of weight 1 per modality this is the posterior mean that `Aligner.embed` scales to unit length.

Spaces beside the own one give further columns: their unit vectors, evened out, times the root of their weight. Their rows are
centred by the means of this collection, which lies elsewhere than those that the base was learned from. A row that has nothing
a base knows gets its columns there from its own latents, E B, where B is the regression of base vectors on latents: they are
the shorter, the less is known. Certainties are averaged with the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from calmrl.aligner.space import NOTHING, direction
from calmrl.arrays import to_tensor
from calmrl.errors import InputError

if TYPE_CHECKING:
    from calmrl.aligner.estimator import Aligner

ROWS = 4096  # embedded at once

Columns = Sequence[Tensor | None]  # values (n, d) per column; None where no row has it
Names = Sequence[str | None]  # of the modality of each column; None where a space does not know it


@dataclass(frozen=True)
class How:
    """How columns are read: with which weights, and around which centres instead of those that a space was learned with."""

    weights: Sequence[float] | None = None
    centres: Sequence[Tensor | None] | None = None

    def centre(self, j: int) -> Tensor | None:
        """The centre of a column; None for that of the space."""
        return None if self.centres is None else self.centres[j]

    def inside(self, centres: Mapping[str, Tensor], names: Names) -> How:
        """For a base: around the means of the collection, by name of the modality."""
        if self.centres is not None or not centres:
            return self
        return How(self.weights, [None if name is None else centres.get(name) for name in names])


AS_LEARNED = How()


def place(aligner: Aligner, columns: Columns, present: Tensor, names: Names, how: How = AS_LEARNED) -> Tensor:
    """Vectors (n, width) float64 of rows; column j holds values of the modality `names[j]`, or of one that is not known."""
    parts = []
    mean = None
    if aligner.space_ is not None:
        mean = own_mean(aligner, columns, present, names, how)
        parts.append(aligner.own_weight_**0.5 * direction(mean))
    for base in aligner.base_:
        inner = [None if name is None else base.names.get(name) for name in names]
        vectors = place(base.aligner, columns, present, inner, how.inside(base.centres, names))
        if base.bridge is not None and mean is not None:
            unknown = ~_known(present, inner).any(1)
            vectors[unknown] = shortened(mean[unknown] @ base.bridge.to(mean))
        parts.append(base.weight**0.5 * base.turned(vectors))
    return torch.cat(parts, dim=1)


def parts(aligner: Aligner, columns: Columns, present: Tensor, names: Names, how: How = AS_LEARNED) -> Tensor:
    """What each column gives to the vectors of rows, (columns, n, width) float64; their sum is `place`.

    Posterior means are sums over what was observed, and each column keeps its part of what scales them to unit length.
    """
    out = []
    own = None
    if aligner.space_ is not None:
        own = torch.zeros((len(names), len(present), aligner.space_.latent_dim), dtype=torch.float64)
        own[_own_columns(aligner, names)[0]] = own_parts(aligner, columns, present, names, how)
        length = own.sum(0).norm(dim=1, keepdim=True)
        scaled = torch.where(length > NOTHING, own / length.clamp(min=NOTHING), 0.0)
        out.append(aligner.own_weight_**0.5 * scaled)
    for base in aligner.base_:
        inner = [None if name is None else base.names.get(name) for name in names]
        vectors = parts(base.aligner, columns, present, inner, how.inside(base.centres, names))
        if base.bridge is not None and own is not None:
            unknown = ~_known(present, inner).any(1)
            bridged = own[:, unknown] @ base.bridge.to(own)
            vectors[:, unknown] = bridged / bridged.sum(0).norm(dim=1, keepdim=True).clamp(min=1.0)
        out.append(base.weight**0.5 * base.turned(vectors))
    return torch.cat(out, dim=2)


def own_mean(aligner: Aligner, columns: Columns, present: Tensor, names: Names, how: How = AS_LEARNED) -> Tensor:
    """The posterior mean in the own space, (n, L)."""
    assert aligner.space_ is not None, "there is no own space"
    return aligner.space_.posterior(*_heads(aligner, columns, present, names, how))


def own_parts(aligner: Aligner, columns: Columns, present: Tensor, names: Names, how: How = AS_LEARNED) -> Tensor:
    """What each column that the own space knows gives to its posterior mean, (columns, n, L)."""
    assert aligner.space_ is not None, "there is no own space"
    return aligner.space_.posterior_parts(*_heads(aligner, columns, present, names, how))


def _heads(
    aligner: Aligner, columns: Columns, present: Tensor, names: Names, how: How
) -> tuple[list[Tensor | None], Tensor, list[int], list[float] | None]:
    """The arguments of `Space.posterior`."""
    mine, which = _own_columns(aligner, names)
    heads: list[Tensor | None] = []
    for j, m in zip(mine, which, strict=True):
        values = columns[j]
        heads.append(None if values is None else aligner.head(m, values[present[:, j]], how.centre(j)))
    return heads, present[:, mine], which, None if how.weights is None else [how.weights[j] for j in mine]


def certainty(aligner: Aligner, columns: Columns, present: Tensor, names: Names, how: How = AS_LEARNED) -> Tensor:
    """How far what is observed determines the place of each row, (n,), from 0 to 1."""
    own = total = torch.zeros(len(present), dtype=torch.float64, device=present.device)
    if aligner.space_ is not None:
        mine, which = _own_columns(aligner, names)
        length = own_mean(aligner, columns, present, names, how).square().sum(dim=1)
        spread = aligner.space_.variance(present[:, mine], which)
        share = length / (length + spread).clamp(min=NOTHING**2)
        own = torch.where(length > NOTHING**2, share, 0.0)
        total = aligner.own_weight_ * own
    for base in aligner.base_:
        inner = [None if name is None else base.names.get(name) for name in names]
        there = certainty(base.aligner, columns, present, inner, how.inside(base.centres, names))
        if base.bridge is not None:
            there = torch.where(_known(present, inner).any(1), there, own)
        total = total + base.weight * there
    return total


def shortened(vectors: Tensor) -> Tensor:
    """Rows longer than one, scaled to length one."""
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1.0)


def _own_columns(aligner: Aligner, names: Names) -> tuple[list[int], list[int]]:
    """(columns that the own space knows, the number of the modality of each)"""
    mine = [j for j, name in enumerate(names) if name in aligner.names_]
    return mine, [aligner.names_.index(str(names[j])) for j in mine]


def _known(present: Tensor, names: Names) -> Tensor:
    """`present` without the columns that have no name."""
    return present & torch.tensor([name is not None for name in names], device=present.device)


@torch.no_grad()
def embed_with_certainty(
    aligner: Aligner, z: Mapping[str, np.ndarray], present: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (N, L) and certainties (N,), both float32; z has some modalities of the aligner, `present` a column for each.

    A row without any modality, or whose modalities say nothing, gets a zero vector and certainty 0.
    """
    names = list(z)
    vectors, sure = place_rows(aligner, z, present), np.zeros(len(present), np.float32)
    for start, columns, mask in _blocks(z, present):
        sure[start : start + ROWS] = certainty(aligner, columns, mask, names).float().numpy()
    return vectors, sure


@torch.no_grad()
def place_rows(aligner: Aligner, z: Mapping[str, np.ndarray], present: np.ndarray) -> np.ndarray:
    """The vectors of `embed_with_certainty` alone."""
    vectors = np.zeros((len(present), aligner.width_), np.float32)
    for start, columns, mask in _blocks(z, present):
        vectors[start : start + ROWS] = place(aligner, columns, mask, list(z)).float().numpy()
    return vectors


def _blocks(z: Mapping[str, np.ndarray], present: np.ndarray) -> Iterator[tuple[int, list[Tensor], Tensor]]:
    for start in range(0, len(present), ROWS):
        mask = torch.from_numpy(np.asarray(present[start : start + ROWS]))
        yield start, [to_tensor(np.asarray(values[start : start + ROWS])) for values in z.values()], mask


@torch.no_grad()
def item_parts(aligner: Aligner, z: Mapping[str, np.ndarray], present: np.ndarray) -> np.ndarray:
    """What each modality gives to the vectors of items, (modalities, N, L) float64; arguments as in `embed_with_certainty`."""
    columns = [to_tensor(np.asarray(values)) for values in z.values()]
    return parts(aligner, columns, torch.from_numpy(np.asarray(present)), list(z)).numpy()


@torch.no_grad()
def fuse(aligner: Aligner, terms: Sequence[tuple[str, np.ndarray, float]]) -> np.ndarray:
    """What each (modality, feature vector, weight > 0) gives to the place of a query, their sum; (terms, L) float64."""
    widths = aligner.widths_
    for name, value, weight in terms:
        if name not in widths:
            raise InputError(f'the aligner has no modality "{name}"; it has {", ".join(aligner.modalities_)}')
        if not weight > 0:
            raise InputError(f"weights of fused terms must be positive; got {weight} for {name}")
        if len(value) != widths[name]:
            raise InputError(f"{name} has width {len(value)} but the aligner was fitted on width {widths[name]}")
    columns = [to_tensor(np.asarray(value)[None]) for _, value, _ in terms]
    everything = torch.ones((1, len(terms)), dtype=torch.bool)
    names, weights = [name for name, _, _ in terms], [weight for *_, weight in terms]
    given = parts(aligner, columns, everything, names, How(weights))[:, 0]
    if not bool(given.sum(0).any()):
        raise InputError("the query says nothing: it equals the average of all items; ask with something else")
    return given.numpy()
