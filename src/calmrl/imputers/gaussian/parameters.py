"""What the latent model has learned: K linear-Gaussian components, z^m = W_c^m beta + mu_c^m + eps, beta ~ N(0, I)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from calmrl.imputers.gaussian.whitening import Turn


@dataclass(frozen=True)
class Parameters:
    """One entry per modality in each list, in the order of `names`; K components, L latents, float64."""

    names: tuple[str, ...]
    W: list[Tensor]  # (K, d_m, L)
    mu: list[Tensor]  # (K, d_m)
    noise: list[Tensor]  # (K, d_m) variances of eps
    log_weight: Tensor  # (K,) log of the mixing weights
    turns: list[Turn] | None = None  # of a whitened model, whose noise is correlated; `noise` is then its diagonal
    kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # what follows from them

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another process: the parameters, without what follows from them."""
        own = ("names", "W", "mu", "noise", "log_weight", "turns")
        return {**{name: self.__dict__[name] for name in own}, "kept": {}}

    @property
    def n_components(self) -> int:
        return self.W[0].shape[0]

    @property
    def latent_dim(self) -> int:
        return self.W[0].shape[2]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(w.shape[1] for w in self.W)

    @cached_property
    def weighted(self) -> list[Tensor]:
        """Psi_m^-1 W^m, (K, d_m, L)."""
        if self.turns is not None:
            return [turn.weighted(W) for W, turn in zip(self.W, self.turns, strict=True)]
        return [W / noise[..., None] for W, noise in zip(self.W, self.noise, strict=True)]

    @cached_property
    def information(self) -> list[Tensor]:
        """W^mT Psi_m^-1 W^m, (K, L, L): what modality m adds to the precision of the latents."""
        return [W.mT @ weighted for W, weighted in zip(self.W, self.weighted, strict=True)]

    def moved(self, shift: Sequence[Tensor]) -> Parameters:
        """The same model after adding `shift` to every z^m."""
        turns = None if self.turns is None else [t.moved(s) for t, s in zip(self.turns, shift, strict=True)]
        return replace(self, mu=[mu + s for mu, s in zip(self.mu, shift, strict=True)], turns=turns)

    def to(self, device: torch.device | str) -> Parameters:
        return self if self.W[0].device == torch.device(device) else self._each(lambda t: t.to(device))

    def detached(self) -> Parameters:
        """Plain values, free of any graph."""
        return self._each(lambda t: t.detach().clone())

    def _each(self, change: Callable[[Tensor], Tensor]) -> Parameters:
        W, mu, noise = ([change(t) for t in part] for part in (self.W, self.mu, self.noise))
        turns = None if self.turns is None else [turn.each(change) for turn in self.turns]
        return replace(self, W=W, mu=mu, noise=noise, log_weight=change(self.log_weight), turns=turns)


def random_parameters(
    names: Sequence[str],
    mean: Sequence[Tensor],
    variance: Sequence[Tensor],
    latent_dim: int,
    generator: torch.Generator,
) -> Parameters:
    """One component whose loadings are random and explain half of each column's variance.

    Drawn on the CPU from `generator`, so that every process and every device starts from the same point.
    """
    loadings, noise = [], []
    for var in variance:
        draw = torch.randn(len(var), latent_dim, generator=generator, dtype=torch.float64).to(var.device)
        loadings.append((draw * (var[:, None] / (2 * latent_dim)).sqrt())[None])
        noise.append((var / 2).mean().expand(1, len(var)).clone())
    return Parameters(
        names=tuple(names),
        W=loadings,
        mu=[m[None].clone() for m in mean],
        noise=noise,
        log_weight=torch.zeros(1, dtype=torch.float64, device=mean[0].device),
    )
