"""What the batches since the last M-step add to the running statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calmrl._support.distributed import all_sum, world
from calmrl.imputers.gaussian.batch_rows import BatchPosterior
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.posterior import Expectation
from calmrl.imputers.gaussian.sufficient_statistics import Statistics

PARTS = ("cross", "square", "gram", "spread", "logdet")


@dataclass
class Recent:
    """Decayed sums over batches that were seen with the same parameters; the average is `kept` times itself plus these.

    In the dtype of the data, with x = z - mu: sums around the mean lose nothing where values are far from zero.
    """

    params: Parameters
    cross: Tensor  # (L + 1, D) sum of [m_i, 1] x_i^T
    square: Tensor  # (D,) sum of x_i^2
    gram: Tensor  # (L + 1, k + 1, L + 1) sum of [m_i, 1] [m_i, 1]^T over rows with each modality, and over all
    spread: Tensor  # (k + 1, L L) sum of V_i over the same rows
    logdet: Tensor  # (k + 1,) sum of log|V_i^-1| over the same rows
    kept: float

    @staticmethod
    def nothing(params: Parameters, dtype: torch.dtype) -> Recent:
        k, L, D = len(params.names), params.latent_dim, sum(params.widths)

        def new(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=params.W[0].device)

        gram, spread = new(L + 1, k + 1, L + 1), new(k + 1, L * L)
        return Recent(params, new(L + 1, D), new(D), gram, spread, new(k + 1), kept=1.0)

    def takes(self, expect: Expectation) -> bool:
        """Whether a batch seen with `expect` can be added."""
        return self.params is expect.params and self.cross.dtype == expect.dtype

    def add(self, posterior: BatchPosterior, present: Tensor, keep: float, add: float) -> None:
        """In place: keep * what is here + add * the sums of a batch of all processes, in one message. Uses up `posterior.x`."""
        x, means = posterior.x, posterior.means
        ones = means.new_ones((len(means), 1))
        means = torch.cat([means, ones], dim=1)  # (N, L + 1)
        held = torch.cat([present.to(x.dtype), ones], dim=1)  # (N, k + 1)
        patterns = np.vstack([posterior.patterns.T, np.ones(len(posterior.patterns), dtype=bool)])
        rows = torch.from_numpy(patterns * posterior.counts).to(x)  # (k + 1, P)
        how = {"beta": keep / world()[0], "alpha": add}  # every process holds the same
        self.cross.addmm_(means.T, x, **how)
        self.square.addmv_(x.square_().T, ones[:, 0], **how)
        self.gram.flatten(1).addmm_(means.T, (held[:, :, None] * means[:, None]).flatten(1), **how)
        self.spread.addmm_(rows, posterior.V.flatten(1), **how)
        self.logdet.addmv_(rows, posterior.logdet.to(x.dtype), **how)
        if world()[0] > 1:
            mine = [getattr(self, part) for part in PARTS]
            for part, total in zip(mine, all_sum(mine), strict=True):
                part.copy_(total)
        self.kept *= keep

    def statistics(self) -> Statistics:
        """The sums as the M-step takes them."""
        params, k, L = self.params, len(self.params.names), self.params.latent_dim
        cross, square, gram, spread, logdet = (getattr(self, part).double() for part in PARTS)
        first, n = gram[:L, :, L].T, gram[L, :, L]  # (k + 1, L), (k + 1,)
        second = gram[:L, :, :L].transpose(0, 1) + spread.reshape(k + 1, L, L)
        constant = torch.cat(Expectation.of(params, self.cross.dtype).constant)  # (k,)
        # sum of m_i^T V_i^-1 m_i: V_i^-1 is 1 and the information of what row i has
        precision = torch.cat([*params.information, torch.eye(L, dtype=n.dtype, device=n.device)[None]])
        quadratic = (precision * second).sum() - L * n[k]
        stats = Statistics(
            n=n[:k, None],
            m1=first[:k, None],
            m2=second[:k, None],
            zm=[block.T[None] for block in cross[:L].split(params.widths, dim=1)],
            z1=[block[None] for block in cross[L].split(params.widths)],
            z2=[block[None] for block in square.split(params.widths)],
            rows=n[k:],
            all1=first[k:],
            all2=second[k:],
            log_likelihood=0.5 * (quadratic - logdet[k] - constant @ n[:k]),
        ).moved([mu[0] for mu in params.mu])
        for mu, noise, z1, z2 in zip(params.mu, params.noise, stats.z1, stats.z2, strict=True):
            stats.log_likelihood -= 0.5 * ((z2 - 2 * mu * z1) / noise).sum()
        return stats
