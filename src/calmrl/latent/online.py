"""Stepwise EM: running averages of the statistics over a stream of batches, and an M-step after each of them.

What batches add since the last M-step stays in the dtype of the data, around the mean (`Recent`), until it is settled into the
average (`Running`): a training step that only learns statistics costs a few products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.distributed import all_sum, sum_over_processes, world
from calmrl.arrays import Views
from calmrl.latent.batch import BatchPosterior
from calmrl.latent.em import expand, latent_moments, maximise, single_prior, smallest_noise
from calmrl.latent.model import Expectation, Parameters, random_parameters
from calmrl.latent.rows import Source, has_holes, pack, source_of, working_dtype
from calmrl.latent.statistics import Statistics, add_pack

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
        """Continue from a full fit: its sums, per row."""
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
    expect = Expectation.of(params, working_dtype(views))
    if sum_over_processes(float(bool(views.holes)), views.present.device) > 0:
        running = absorb_rows(views, expect, running, step_size)
    else:
        posterior = BatchPosterior(expect, views.rows(0, len(views)), views.present)
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
        rate = _rate(running, rows, step_size)
        running.recent.add(posterior, present, keep=1 - rate, add=rate / rows)
        running.squares = (1 - rate) ** 2 * running.squares + rate**2 / rows
        running.rows += rows
    return running


@torch.no_grad()
def absorb_rows(views: Views, expect: Expectation, running: Running | None, step_size: float | str) -> Running:
    """As `absorb`, for a batch in which rows have holes inside a modality: it enters the average at once."""
    running = Running(Statistics.zeros(expect.params), 0.0) if running is None else running
    running.settle()
    rows = sum_over_processes(len(views), views.present.device)
    if rows > 0:
        stats = Statistics.zeros(expect.params)
        stats.with_own()
        values, present = views.rows(0, len(views)), views.present
        packed = pack(values, present, expect.params.widths, expect.dtype, holes=has_holes(views))
        add_pack(stats, packed, expect)
        stats.over_processes()
        rate = _rate(running, rows, step_size)
        running.average.combine(stats, keep=1 - rate, add=rate / rows)
        running.squares = (1 - rate) ** 2 * running.squares + rate**2 / rows
        running.rows += rows
    return running


def _rate(running: Running, rows: float, step_size: float | str) -> float:
    return float((running.rows / rows + 2) ** -DECAY if step_size == "decay" else step_size)


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
    n = stats.count(m).sum(0).clamp(min=1e-300)
    mean = stats.z1[m].sum(0) / n
    return mean, (stats.z2[m].sum(0) / n - mean**2).clamp(min=0)
