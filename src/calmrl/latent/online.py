"""Stepwise EM: running averages of the statistics over a stream of batches, and an M-step after each of them.

A batch of a training step is one matrix (N, D), its rows in their order, because a step is short and sorting them by pattern
would cost as much as the mathematics: its posterior means, the batch completed by them, and the gradient through that.

What batches add since the last M-step stays in the dtype of the data, around the mean (`Recent`), until it is settled into the
average (`Running`): a training step that only learns statistics costs a few products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl._support.distributed import all_sum, sum_over_processes, world
from calmrl.arrays import Views
from calmrl.latent.em import expand, latent_moments, maximise, single_prior, smallest_noise
from calmrl.latent.model import Expectation, Parameters, random_parameters
from calmrl.latent.rows import Source, distinct_rows, has_holes, pack, source_of, working_dtype
from calmrl.latent.statistics import Statistics, add_pack

# ---- one batch of a training step

PADDED = 1024  # rows, and four times those of the batch: so many may be multiplied to have one product for all patterns


class Gaps:
    """Which rows of a batch lack which modality.

    Columns of a batch (N, D) are taken in blocks: all modalities in one block (N k, d) if they have the same width,
    each in its own (N, d_m) otherwise.
    """

    def __init__(self, mask: np.ndarray, widths: Sequence[int], device: torch.device) -> None:
        n, k = mask.shape
        self.widths = list(widths)
        self.one_block = len(set(widths)) == 1
        modality, row = np.divmod(np.flatnonzero(~mask.T), max(n, 1))
        self.counts = np.bincount(modality, minlength=k).tolist()  # [m]: rows that lack m
        self.rows = torch.from_numpy(row).to(device)  # (M,) their numbers, modality by modality
        within = [torch.from_numpy(row * k + modality).to(device)] if self.one_block else self.rows.split(self.counts)
        self.within: Sequence[Tensor] = within  # the same in each block

    def blocks(self, whole: Tensor) -> Sequence[Tensor]:
        """Views of the columns of a batch."""
        if self.one_block:
            return [whole.view(-1, self.widths[0])]
        starts = [sum(self.widths[:m]) for m in range(len(self.widths))]
        return [whole.narrow(1, start, width) for start, width in zip(starts, self.widths, strict=True)]

    def joined(self, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """What belongs to the missing rows of each modality, per block."""
        return [torch.cat(list(parts))] if self.one_block else parts

    def blank(self, whole: Tensor) -> None:
        """In place: zero where missing."""
        for block, rows in zip(self.blocks(whole), self.within, strict=True):
            block.index_fill_(0, rows, 0.0)


class BatchPosterior:
    """Posterior means of a batch, and the V of each of its rows.

    `x` is large and serves whoever comes next: `Recent.add` leaves squares in it, `completed` takes it away.
    """

    def __init__(self, expect: Expectation, z: Sequence[Tensor | None], present: Tensor) -> None:
        """Values of missing rows are never used; `None` stands for a modality that no row has."""
        self.expect = expect
        mask = present.cpu().numpy()
        self.gaps = Gaps(mask, expect.params.widths, present.device)
        given = [
            present.new_zeros((len(present), width), dtype=expect.dtype) if values is None else values
            for values, width in zip(z, expect.params.widths, strict=True)
        ]
        self.x = side_by_side(given, expect.dtype).sub_(expect.middle)  # (N, D) z - mu, zero where missing
        self.gaps.blank(self.x)
        self.patterns, slots = distinct_rows(mask)
        self.counts = np.bincount(slots, minlength=len(self.patterns))  # (P,) rows of each pattern
        self.V, self.logdet = expect.maps(torch.from_numpy(self.patterns).to(present.device))  # (P, L, L), (P,)
        self._order_rows(slots, present.device)
        self.means = self.times_V(self.x @ expect.side_by_side)  # (N, L)

    def _order_rows(self, slots: np.ndarray, device: torch.device) -> None:
        """Where rows go so that those of one pattern stand together, and back."""
        order = np.argsort(slots, kind="stable")
        widest = int(self.counts.max(initial=0))
        self.padded = widest * len(self.counts) <= PADDED + 4 * len(slots)
        if self.padded:  # (P, widest), where any row fills what is left
            place = np.empty_like(order)
            starts = np.cumsum(self.counts) - self.counts
            place[order] = np.arange(len(order)) + (slots * widest - starts[slots])[order]
            filled = np.zeros(widest * len(self.counts), dtype=np.int64)
            filled[place] = np.arange(len(order))
            order = filled
        else:
            place = np.argsort(order)
        self.order, self.place = (torch.from_numpy(numbers).to(device) for numbers in (order, place))

    def times_V(self, b: Tensor) -> Tensor:
        """V_i b_i of every row, (N, L); differentiable in `b`."""
        if not len(b):
            return b
        in_order, V = b.index_select(0, self.order), self.V
        if self.padded:
            done = torch.bmm(in_order.view(len(V), -1, b.shape[1]), V).flatten(0, 1)
        else:
            done = torch.cat([rows @ own for rows, own in zip(in_order.split(self.counts.tolist()), V, strict=True)])
        return done.index_select(0, self.place)


def side_by_side(blocks: Sequence[Tensor], dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """(N, D), in `out` if it is given."""
    return torch.cat([block.to(dtype) for block in blocks], dim=1, out=out)


def completed(z: Sequence[Tensor], posterior: BatchPosterior, unit: bool) -> Tensor:
    """(N, D) in the dtype of the posterior, which is that of `z`: `z` side by side, predictive means in missing blocks.

    `unit` scales imputed vectors to length one. Differentiable in `z`, also through what is imputed. Takes over the
    memory of `posterior.x`.
    """
    return _Completion.apply(posterior, unit, *z)[0]


def imputed(posterior: BatchPosterior, unit: bool) -> tuple[Sequence[Tensor], list[Tensor]]:
    """(imputed vectors, what they were divided by) of the missing rows of each block; constants."""
    expect, gaps = posterior.expect, posterior.gaps
    means = posterior.means.index_select(0, gaps.rows).split(gaps.counts)
    parts = zip(means, expect.loadings, expect.centre, strict=True)
    vectors = gaps.joined([torch.addmm(mu[0], mean, W[0].T) for mean, W, mu in parts])
    if not unit:
        return vectors, []
    shortest = torch.finfo(expect.dtype).tiny ** 0.5
    lengths = [torch.linalg.vector_norm(y, dim=1, keepdim=True).clamp_(min=shortest) for y in vectors]
    return [y.div_(length) for y, length in zip(vectors, lengths, strict=True)], lengths


class _Completion(torch.autograd.Function):
    """(completed batch, lengths of the imputed vectors). Saves nothing but its outputs, and its backward is differentiable."""

    @staticmethod
    def forward(ctx: Any, posterior: BatchPosterior, unit: bool, *z: Tensor) -> tuple[Tensor, ...]:
        whole = side_by_side(z, posterior.expect.dtype, out=posterior.x)
        del posterior.x  # or output, node and posterior would hold each other until the next garbage collection
        vectors, lengths = imputed(posterior, unit)
        gaps = posterior.gaps
        for block, rows, y in zip(gaps.blocks(whole), gaps.within, vectors, strict=True):
            block.index_copy_(0, rows, y)
        ctx.posterior, ctx.dtypes = posterior, [tensor.dtype for tensor in z]
        ctx.save_for_backward(whole, *lengths)
        ctx.set_materialize_grads(False)
        return whole, *lengths

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *g_lengths: Tensor | None) -> tuple[Tensor | None, ...]:
        posterior: BatchPosterior = ctx.posterior
        expect, gaps = posterior.expect, posterior.gaps
        whole, *lengths = ctx.saved_tensors
        g = torch.zeros_like(whole) if g is None else g.contiguous()
        of_y = [block.index_select(0, rows) for block, rows in zip(gaps.blocks(g), gaps.within, strict=True)]
        for j, (length, g_length) in enumerate(zip(lengths, g_lengths, strict=True)):
            u = gaps.blocks(whole)[j].index_select(0, gaps.within[j])
            along = (u * of_y[j]).sum(1, keepdim=True)
            of_y[j] = torch.addcmul(of_y[j], u, along, value=-1) / length
            if g_length is not None:
                of_y[j] = of_y[j] + u * g_length
        parts = of_y[0].split(gaps.counts) if gaps.one_block else of_y
        of_mean = torch.cat([part @ W[0] for part, W in zip(parts, expect.loadings, strict=True)])  # (M, L)
        of_means = torch.zeros_like(posterior.means).index_add(0, gaps.rows, of_mean)
        g = torch.addmm(g, posterior.times_V(of_means), expect.side_by_side.T)
        gaps.blank(g)
        of_z = zip(g.split(gaps.widths, dim=1), ctx.dtypes, strict=True)
        return None, None, *(part.to(dtype) for part, dtype in of_z)


# ---- running statistics

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
    holes = sum_over_processes(float(bool(views.holes)), views.present.device) > 0
    batch = views if holes else BatchPosterior(expect, views.rows(0, len(views)), views.present)
    running = absorb(expect, batch, views.present, running, step_size)
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
def absorb(
    expect: Expectation,
    batch: BatchPosterior | Views,
    present: Tensor,
    running: Running | None,
    step_size: float | str,
) -> Running:
    """Blend a batch, of all processes, into the running statistics.

    As a posterior it joins what is recent; as rows, which may have holes inside a modality, it enters the average at once.
    """
    running = Running(Statistics.zeros(expect.params), 0.0) if running is None else running
    rows = sum_over_processes(len(present), present.device)
    if rows == 0:
        return running
    rate = float((running.rows / rows + 2) ** -DECAY if step_size == "decay" else step_size)
    if isinstance(batch, Views):
        running.settle()
        stats = Statistics.zeros(expect.params)
        stats.with_own()
        values = batch.rows(0, len(batch))
        add_pack(stats, pack(values, present, batch.widths, expect.dtype, holes=has_holes(batch)), expect)
        stats.over_processes()
        running.average.combine(stats, keep=1 - rate, add=rate / rows)
    else:
        if running.recent is None or not running.recent.takes(expect):
            running.settle()
            running.recent = Recent.nothing(expect.params, expect.dtype)
        running.recent.add(batch, present, keep=1 - rate, add=rate / rows)
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
    n = stats.count(m).sum(0).clamp(min=1e-300)
    mean = stats.z1[m].sum(0) / n
    return mean, (stats.z2[m].sum(0) / n - mean**2).clamp(min=0)
