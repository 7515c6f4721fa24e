"""Stepwise EM: running sufficient statistics, s <- (1 - g) s + g s_batch, and one M-step per batch.

An M-step on a single batch would be rank-deficient and diverge; the running average makes batches of 64 reach the quality
of full-batch EM. A batch in which a modality is absent scales all of that modality's sums alike, so its parameters keep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calmrl._support.distributed import sum_over_processes
from calmrl.convention import Views
from calmrl.imputers.gaussian.batch_rows import BatchPosterior
from calmrl.imputers.gaussian.maximise import expand, latent_moments, maximise, single_prior, smallest_noise
from calmrl.imputers.gaussian.parameters import Parameters, random_parameters
from calmrl.imputers.gaussian.posterior import Expectation
from calmrl.imputers.gaussian.predict import working_dtype
from calmrl.imputers.gaussian.recent import Recent
from calmrl.imputers.gaussian.row_sources import Source, source_of
from calmrl.imputers.gaussian.sufficient_statistics import Statistics

DECAY = 0.6  # g_t = (t + 2)^-0.6
FLOOR = 1e-6  # of the running variance: the smallest noise


@dataclass
class Running:
    """The running average of the statistics per row, and how many rows it has seen in all.

    `recent` is what the batches since the last M-step add to it; `settle` adds it. `squares` is the sum of the squared
    weights that rows have in it, so that (sum of weights)^2 / squares is the number of rows that it is worth.
    """

    average: Statistics
    rows: float
    squares: float = 0.0
    recent: Recent | None = None

    @staticmethod
    def from_sums(sums: Statistics, rows: float) -> Running:
        """Go on from a full fit: its sums, per row."""
        average = replace(sums)
        for field, value in vars(sums).items():
            scaled = [v / rows for v in value] if isinstance(value, list) else value / rows
            setattr(average, field, scaled)
        return Running(average, float(rows), 1 / rows)

    def settle(self) -> None:
        """In place: add what is recent to the average."""
        if self.recent is not None:
            self.average.combine(self.recent.statistics(), keep=self.recent.kept, add=1.0)
            self.recent = None


def start(views: Views, latent_dim: int, seed: int) -> Parameters:
    """Random parameters around the mean and variance of the first batch of all processes, the same in each of them.

    A modality that the batch lacks starts at mean 0 and variance 1.
    """
    first = source_of(views)
    variance = [
        (v.mean().clamp(min=1e-12) if n > 1 else torch.ones_like(n)).expand_as(v)
        for v, n in zip(first.variance, first.count, strict=True)
    ]
    return random_parameters(views.names, first.mean, variance, latent_dim, torch.Generator().manual_seed(seed))


@torch.no_grad()
def step(
    views: Views,
    params: Parameters,
    running: Running | None,
    *,
    step_size: float | str,
    prior: float,
    m_step: str,
    isotropic: bool,
    most: float = float("inf"),
) -> tuple[Parameters, Running]:
    """One batch: E-step with the current parameters, blend into the running statistics, M-step, expansion.

    `most` is how many different rows there are, where that is known: seen again, they are not worth more.
    """
    posterior = BatchPosterior(Expectation.of(params, working_dtype(views)), views.rows(0, len(views)), views.present)
    running = absorb(posterior, views.present, running, step_size)
    if running.rows == 0:
        return params, running
    running.settle()
    stats = running.average
    weight = float(stats.rows.sum())
    worth = min(weight**2 / running.squares, most)
    prior *= weight / worth  # in units of the average, which forgets: rows seen long ago do not count against the prior
    moments = [_moments(stats, m) for m in range(len(params.names))]
    floor = [smallest_noise(variance, mean, FLOOR) for mean, variance in moments]
    belief = single_prior(prior, [variance for _, variance in moments], floor)
    params = maximise(stats, params, belief, m_step=m_step, isotropic=isotropic)
    latents = latent_moments(stats) if prior == 0 else None
    if latents is not None:
        params, running.average = expand(params, *latents), running.average.rebased(*latents)
    return params, running


@torch.no_grad()
def absorb(posterior: BatchPosterior, present: Tensor, running: Running | None, step_size: float | str) -> Running:
    """Blend a batch, of all processes, into the running statistics."""
    expect = posterior.expect
    if running is None:
        running = Running(Statistics.zeros(expect.params), 0.0)
    rows = sum_over_processes(len(present), present.device)
    if rows > 0:
        if running.recent is None or not running.recent.takes(expect):
            running.settle()
            running.recent = Recent.nothing(expect.params, expect.dtype)
        rate = (running.rows / rows + 2) ** -DECAY if step_size == "decay" else float(step_size)
        running.recent.add(posterior, present, keep=1 - rate, add=rate / rows)
        running.squares = (1 - rate) ** 2 * running.squares + rate**2 / rows
        running.rows += rows
    return running


def passes(
    source: Source, params: Parameters, *, seed: int, batch_size: int, max_iter: int, tol: float, **how: Any
) -> tuple[Parameters, Running, list[float]]:
    """Shuffled batches, pass after pass, until a pass gains less than `tol`; everything in the frame of the data."""
    generator = torch.Generator().manual_seed(seed)
    running: Running | None = None
    history: list[float] = []
    for _ in range(max_iter):
        for views in source.chunks():
            for rows in torch.randperm(len(views), generator=generator).split(batch_size):
                params, running = step(views.take(rows), params, running, most=source.rows, **how)
        assert running is not None
        running.settle()
        history.append(float(running.average.log_likelihood / running.average.rows.sum()))
        if len(history) > 1 and abs(history[-1] - history[-2]) <= tol * max(1.0, abs(history[-1])):
            break
    assert running is not None
    return params, running, history


def _moments(stats: Statistics, m: int) -> tuple[Tensor, Tensor]:
    """The running mean and variance of every column, (d,) each."""
    n = stats.n[m].sum().clamp(min=1e-300)
    mean = stats.z1[m].sum(0) / n
    return mean, (stats.z2[m].sum(0) / n - mean**2).clamp(min=0)
