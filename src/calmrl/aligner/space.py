"""The shared space: one linear head per modality on its features, and how sure each modality is of what it says.

With f^m the whitened features, J_m = W^mT W^m / s2_m and h_m = (I + J_m)^-1 W^mT (f^m - mu^m) / s2_m, the posterior mean
given modality m alone, the posterior mean given any observed set Omega is

    E[beta | Omega] = (I + sum_{m in Omega} J_m)^-1 sum_{m in Omega} (I + J_m) h_m.

The heads h_m are what refinement changes; the precisions J_m stay as the latent model learned them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calmrl.aligner.candidates import Candidate
from calmrl.aligner.lift import Lift
from calmrl.imputers.gaussian.fitting import Settings, fit_settings
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.pattern_groups import group
from calmrl.imputers.gaussian.posterior import Expectation
from calmrl.imputers.gaussian.row_sources import Source, open_source

ITERATIONS = 10  # of PX-EM
NOTHING = 1e-9  # a posterior mean shorter than this, where the prior deviation is 1, is zero but for rounding


@dataclass(frozen=True)
class Space:
    """Per modality: weight (r_m, L), bias (L,), and information J (L, L)."""

    weight: list[Tensor]
    bias: list[Tensor]
    information: list[Tensor]

    @property
    def latent_dim(self) -> int:
        """Number of latents, L."""
        return self.information[0].shape[0]

    @staticmethod
    def of(params: Parameters) -> Space:
        """The space of a fitted latent model with one component."""
        expect = Expectation(params, torch.float64)
        weight, bias, information = [], [], []
        for m, J in enumerate(params.information):
            V = torch.linalg.inv(expect.eye + J[0])
            weight.append((expect.scaled[m] @ V).contiguous())
            bias.append(-expect.offset[m][0] @ V)
            information.append(J[0])
        return Space(weight, bias, information)

    def head(self, m: int, features: Tensor) -> Tensor:
        """Posterior mean given modality m alone, (n, L)."""
        return features @ self.weight[m].to(features) + self.bias[m].to(features)

    def unit(self, m: int, features: Tensor) -> Tensor:
        """`head`, scaled to unit length."""
        return direction(self.head(m, features))

    def combine(self, heads: list[Tensor | None], present: Tensor) -> Tensor:
        """`direction` of the posterior mean given all that each row has, (n, L); heads of missing rows are not read.

        `heads[m]` holds the rows that have modality m, in their order; one factorisation per pattern.
        """
        given = next(head for head in heads if head is not None)
        eye = torch.eye(self.latent_dim, dtype=torch.float64, device=given.device)
        place = present.long().cumsum(0) - 1  # where a row stands among those that have the modality
        out = given.new_zeros((len(present), self.latent_dim))
        patterns, order, bounds = group(present)
        for p, pattern in enumerate(patterns.tolist()):
            rows = order[bounds[p] : bounds[p + 1]]
            held = [m for m, has in enumerate(pattern) if has]
            if len(held) == 1:
                out[rows] = _rows(heads[held[0]], place[rows, held[0]])
                continue
            total = eye + sum(self.information[m].to(eye) for m in held)
            for m in held:
                share = torch.linalg.solve(total, eye + self.information[m].to(eye))  # V_Omega (I + J_m)
                out[rows] += _rows(heads[m], place[rows, m]) @ share.T.to(given)
        return direction(out)


def direction(mean: Tensor) -> Tensor:
    """Posterior means (n, L) scaled to unit length; exactly zero where they say nothing, which has no direction."""
    length = mean.norm(dim=1, keepdim=True)
    return torch.where(length > NOTHING, mean / length.clamp(min=NOTHING), 0.0)


def head_maps(lifts: list[Lift], whitening: float, space: Space) -> list[Tensor]:
    """Per modality the projection on features, their whitening and the weight of the head as one matrix for `Lift.project`."""
    return [
        (lift.projection * lift.scale(whitening)) @ weight.to(lift.projection)
        for lift, weight in zip(lifts, space.weight, strict=True)
    ]


def _rows(head: Tensor | None, index: Tensor) -> Tensor:
    assert head is not None, "a modality that a row has is without a head"
    return head[index]


def fit_space(source: Source, candidate: Candidate, seed: int) -> Space:
    """The space after ITERATIONS of PX-EM on whitened features."""
    latents = min(candidate.latent_dim, sum(source.widths))
    settings = Settings(latents, prior=candidate.prior, iterations=ITERATIONS)
    fit = fit_settings(source, settings, seed=seed, max_iter=ITERATIONS, tol=0.0)
    return Space.of(fit.params.moved(source.mean))


def source_of_features(names: list[str], features: list[Tensor], present: Tensor, shared: bool) -> Source:
    """Features (n_m, r_m) of the rows that have each modality as a source of rows in memory."""
    full = {}
    for m, name in enumerate(names):
        values = features[m].new_zeros((len(present), features[m].shape[1]))
        values[present[:, m]] = features[m]
        full[name] = values
    return open_source(full, present, shared=shared)
