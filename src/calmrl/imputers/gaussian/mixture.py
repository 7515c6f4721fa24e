"""From one linear-Gaussian component to K: components start from, and are shrunk toward, the one-component model."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from calmrl._support.distributed import gather_objects, world
from calmrl.errors import InputError
from calmrl.imputers.gaussian.maximise import Prior
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.pattern_groups import Pack
from calmrl.imputers.gaussian.posterior import Expectation
from calmrl.imputers.gaussian.row_sources import Source

SAMPLE_ROWS = 20_000  # k-means sees at most about this many posterior means


@torch.no_grad()
def split(source: Source, base: Parameters, n_components: int, seed: int) -> Parameters:
    """K copies of the base model, centred on k-means clusters of its posterior means.

    Component c gets mu_c = mu + W beta_c for cluster centre beta_c: every modality moves along the shared latents, so
    rows need not have any particular modality to take part.
    """
    means = _sample_means(source, base)
    means = means[
        np.lexsort(means.T)
    ]  # k-means depends on the order of rows; how they are spread over processes must not
    if len(means) < n_components:
        raise InputError(f"n_components={n_components} needs at least as many rows; got {len(means)}")
    clusters = KMeans(n_components, n_init=1, random_state=seed).fit(means)
    share = np.bincount(clusters.labels_, minlength=n_components) / len(means)
    device = base.log_weight.device
    centres = torch.as_tensor(clusters.cluster_centers_, dtype=torch.float64, device=device)
    return Parameters(
        base.names,
        W=[W.repeat(n_components, 1, 1) for W in base.W],
        mu=[mu + centres @ W[0].T for mu, W in zip(base.mu, base.W, strict=True)],
        noise=[noise.repeat(n_components, 1) for noise in base.noise],
        log_weight=torch.as_tensor(share, dtype=torch.float64, device=device).clamp(min=1e-12).log(),
    )


def component_prior(base: Parameters, strength: float, floor: list[Tensor]) -> Prior:
    """Each component's W leans on the shared W with `strength` rows, its noise on the shared noise, its mean on the mean."""
    return Prior(
        loading=strength,
        mean=1.0,
        noise=max(1.0, strength),
        weight=1.0,
        scale=[noise[0] for noise in base.noise],
        floor=floor,
        centre=[W[0] for W in base.W],
    )


def _sample_means(source: Source, base: Parameters) -> np.ndarray:
    """Posterior means of an evenly spaced sample of the rows of all processes, the same array in every process."""
    size, _ = world()
    step = max(1, source.rows // SAMPLE_ROWS)
    mine = torch.cat(list(source.each(_every_step, base, source.dtype, step))).cpu().numpy()
    if size == 1 or not source.shared:
        return mine
    return np.concatenate(gather_objects(mine))


@torch.no_grad()
def _every_step(packs: Iterable[Pack], base: Parameters, dtype: torch.dtype, step: int) -> Tensor:
    """Posterior means of every `step`-th row of each pattern of a pack."""
    expect = Expectation.of(base, dtype)
    parts = []
    for packed in packs:
        parts += [rows[::step] for rows in expect.means(packed)[1].double().split(packed.sizes)]
    return torch.cat(parts)
