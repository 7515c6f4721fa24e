"""Expectation-maximisation over a source of rows: monotone in the log-likelihood (plus log prior), PX-accelerated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from calmrl.imputers.gaussian.maximise import Prior, expand, latent_moments, maximise
from calmrl.imputers.gaussian.moments import Moments
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.pattern_groups import Pack
from calmrl.imputers.gaussian.posterior import Expectation
from calmrl.imputers.gaussian.row_sources import Source
from calmrl.imputers.gaussian.sufficient_statistics import Statistics, add_moments, add_pack

if TYPE_CHECKING:
    from calmrl.imputers.gaussian.em_checkpoint import Checkpoint


@dataclass
class Fit:
    """Where EM ended: the parameters and the objective per row before each M-step."""

    params: Parameters
    objective: list[float] = field(default_factory=list)
    converged: bool = False
    statistics: Statistics | None = None  # of the last E-step, in the latents of `params`


def expected_statistics(source: Source, params: Parameters) -> Statistics:
    """The E-step over all rows of all processes."""
    if isinstance(source, Moments):
        return source.expected(params)
    stats: Statistics | None = None
    for part in source.each(_block_statistics, params, source.dtype):
        if stats is None:
            stats = part
        else:
            stats.combine(part, keep=1.0, add=1.0)
    assert stats is not None  # a source has rows
    params.kept.clear()  # what all blocks used; a search remembers the parameters of many steps
    if source.shared:
        stats.over_processes()
    if params.n_components == 1:  # rows are centred: their sum is zero and their sum of squares is known
        add_moments(stats, params, [torch.zeros_like(sq) for sq in source.square], source.square)
    return stats


@torch.no_grad()
def _block_statistics(packs: Iterable[Pack], params: Parameters, dtype: torch.dtype) -> Statistics:
    """The E-step over the rows of one block."""
    expect = Expectation.of(params, dtype)
    stats = Statistics.zeros(params)
    for packed in packs:
        add_pack(stats, packed, expect, moments=False)
    return stats


@torch.no_grad()
def run_em(
    source: Source,
    params: Parameters,
    prior: Prior,
    *,
    m_step: str = "joint",
    isotropic: bool = True,
    accelerate: bool = True,
    max_iter: int = 200,
    tol: float = 1e-6,
    after_step: Callable[[int, Parameters, float], bool] | None = None,
) -> Fit:
    """EM until the objective per row gains less than `tol` (relative), or `after_step` returns True.

    The expansion step is exact for maximum likelihood; with a prior it may overshoot. A step that lowers the objective
    is taken back and replaced by the plain EM step, which cannot; so the recorded objective never decreases.
    """
    fit = Fit(params)
    plain: Parameters | None = None  # the plain EM step, where `params` is the accelerated one
    keeper = _keeper(source, params, prior, m_step=m_step, isotropic=isotropic, accelerate=accelerate, tol=tol)
    standing = keeper.load() if keeper is not None else None
    if standing is not None:
        params, plain, accelerate = standing.params, standing.fallback, standing.accelerate
        fit = Fit(standing.best, standing.objective)
    while len(fit.objective) < max_iter:
        stats = expected_statistics(source, params)
        objective = (float(stats.log_likelihood) + prior.log_density(params)) / source.rows
        if fit.objective and objective < fit.objective[-1]:
            if plain is not None:
                params, plain, accelerate = plain, None, False
                continue
            fit.converged = True  # what is left is rounding
            break
        gain = objective - fit.objective[-1] if fit.objective else float("inf")
        fit.objective.append(objective)
        fit.params, fit.statistics = params, stats
        if gain <= tol * max(1.0, abs(objective)):
            fit.converged = True
            break
        params = maximise(stats, params, prior, m_step=m_step, isotropic=isotropic)
        moments = latent_moments(stats) if accelerate else None
        plain = None
        if moments is not None:
            plain, params = params, expand(params, *moments)
        last = len(fit.objective) == max_iter
        if (after_step is not None and after_step(len(fit.objective), params, objective)) or last:
            fit.params, fit.statistics = params, stats if moments is None else stats.rebased(*moments)
            break
        if keeper is not None:
            keeper.save(params, plain, fit.params, accelerate, fit.objective)
    if fit.statistics is None:  # it went on from a checkpoint, and ended with the parameters from there
        fit.statistics = expected_statistics(source, fit.params)
    return fit


def _keeper(source: Source, start: Parameters, prior: Prior, **options: Any) -> Checkpoint | None:
    """Where the standing of this fit is kept; None where nothing is kept."""
    keep = None if source.spread is None else source.spread.rows.keep
    if keep is None:
        return None
    from calmrl.imputers.gaussian.em_checkpoint import Checkpoint

    strengths = {name: getattr(prior, name) for name in ("loading", "mean", "noise", "weight")}
    return Checkpoint(keep, start, {"rows": source.rows, **strengths, **options})
