"""One fit with given settings: a single component, and from there the mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calmrl.imputers.gaussian.em import Fit, run_em
from calmrl.imputers.gaussian.maximise import Prior, single_prior, smallest_noise
from calmrl.imputers.gaussian.mixture import component_prior, split
from calmrl.imputers.gaussian.parameters import Parameters, random_parameters
from calmrl.imputers.gaussian.row_sources import Source


@dataclass(frozen=True)
class Settings:
    """Everything that can be chosen. `None` iterations means: until convergence."""

    latent_dim: int
    n_components: int = 1
    noise: str = "isotropic"
    prior: float = 0.0
    component_prior: float = 0.0
    base_iterations: int | None = None
    iterations: int | None = None
    whitening: float = 0.0


def noise_floor(source: Source) -> list[Tensor]:
    """The smallest noise variance allowed: what the working dtype can still tell from zero."""
    relative = 1e-5 if source.dtype == torch.float32 else 1e-8
    return [smallest_noise(v, c, relative) for v, c in zip(source.variance, source.mean, strict=True)]


def start_at_random(source: Source, latent_dim: int, seed: int) -> Parameters:
    """Random loadings around the column means, in the source's centred frame; none for a modality that no row has."""
    floor = noise_floor(source)
    variance = [torch.maximum(v, f) for v, f in zip(source.variance, floor, strict=True)]
    zero = [torch.zeros_like(mean) for mean in source.mean]
    start = random_parameters(source.names, zero, variance, latent_dim, torch.Generator().manual_seed(seed))
    for W, count in zip(start.W, source.count, strict=True):
        if count == 0:
            W.zero_()
    return start


def fit_settings(
    source: Source,
    settings: Settings,
    *,
    seed: int,
    max_iter: int,
    tol: float,
    m_step: str = "joint",
    accelerate: bool = True,
    base: Parameters | None = None,
    after_step: Callable[[int, Parameters, float], bool] | None = None,
) -> Fit:
    """EM with the given settings; parameters are in the source's centred frame. `base` spares a mixture its first part."""
    floor = noise_floor(source)

    def run(start: Parameters, prior: Prior, limit: int | None, px: bool, watch: bool) -> Fit:
        return run_em(
            source,
            start,
            prior,
            m_step=m_step,
            isotropic=settings.noise == "isotropic",
            accelerate=px,
            max_iter=limit or max_iter,
            tol=tol,
            after_step=after_step if watch else None,
        )

    single = settings.n_components == 1
    if base is None:
        start = start_at_random(source, settings.latent_dim, seed)
        prior = single_prior(settings.prior, source.variance, floor)
        fit = run(start, prior, settings.iterations if single else settings.base_iterations, accelerate, single)
        if single:
            return fit
        base = fit.params
    prior = component_prior(base, settings.component_prior, floor)
    return run(split(source, base, settings.n_components, seed), prior, settings.iterations, False, True)
