"""Rows summed up by missing pattern: with one component EM needs nothing else, so that it never reads the rows again.

For every pattern: how many rows have it, the sum of their values, and the sum of their products, over all modalities of
the pattern side by side. One E-step then costs the same for a thousand rows and for a billion.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from calmrl._support.distributed import all_sum, gather_objects
from calmrl.convention import Views
from calmrl.imputers.gaussian.parameters import Parameters
from calmrl.imputers.gaussian.pattern_groups import Pack, group
from calmrl.imputers.gaussian.posterior import Expectation
from calmrl.imputers.gaussian.row_sources import Source
from calmrl.imputers.gaussian.sufficient_statistics import Statistics, add_moments


@dataclass
class PatternSums:
    """Sums over the rows of one pattern; D is the width of all its modalities together. float64."""

    rows: Tensor  # ()
    first: Tensor  # (D,)
    second: Tensor  # (D, D)


@dataclass
class Moments(Source):
    """A source that EM can use without its rows. The sums are of centred values."""

    sums: dict[tuple[bool, ...], PatternSums] | None = None

    def expected(self, params: Parameters) -> Statistics:
        """The E-step over all rows, from the sums."""
        assert self.sums is not None
        expect = Expectation(params, torch.float64)
        stats = Statistics.zeros(params)
        for pattern, sums in self.sums.items():
            _add_pattern(stats, expect, pattern, sums)
        add_moments(stats, params, [torch.zeros_like(sq) for sq in self.square], self.square)
        return stats


Sums = dict[tuple[bool, ...], PatternSums]


def sum_up(source: Source, packs: Iterable[Pack], patterns: list[tuple[bool, ...]]) -> Moments:
    """Sum up packs of uncentred values over all processes; `source` says names, widths, counts and rows.

    `patterns` lists every pattern of every process, in the same order everywhere.
    """
    return add_up(source, [block_sums(packs, source.widths, patterns)], patterns)


def add_up(source: Source, parts: Iterable[Sums], patterns: list[tuple[bool, ...]]) -> Moments:
    """As `sum_up`, from the `block_sums` of every block of rows."""
    columns = {pattern: [m for m, has in enumerate(pattern) if has] for pattern in patterns}
    sums: Sums = {}
    for part in parts:
        for pattern, one in part.items():
            if pattern not in sums:
                sums[pattern] = one
                continue
            total = sums[pattern]
            total.rows += one.rows
            total.first += one.first
            total.second += one.second
    flat = all_sum([t for pattern in patterns for t in vars(sums[pattern]).values()])
    sums = {pattern: PatternSums(*flat[3 * i : 3 * i + 3]) for i, pattern in enumerate(patterns)}
    return _centred(source, sums, columns)


def block_sums(packs: Iterable[Pack], widths: tuple[int, ...], patterns: list[tuple[bool, ...]]) -> Sums:
    """Per pattern: rows, sum and sum of products of the uncentred values of some packs, all of them on one device."""
    sums: Sums = {}
    for packed in packs:
        for pattern in patterns if not sums else ():
            D = sum(width for width, has in zip(widths, pattern, strict=True) if has)
            zero = torch.zeros((), dtype=torch.float64, device=packed.patterns.device)
            sums[pattern] = PatternSums(zero.clone(), zero.expand(D).clone(), zero.expand(D, D).clone())
        for p, pattern in enumerate(packed.patterns.tolist()):
            here = sums[tuple(pattern)]
            rows = torch.cat([z for _, z in packed.slices(p)], dim=1)
            here.rows += len(rows)
            here.first += rows.sum(0, dtype=torch.float64)
            here.second += rows.T @ rows
    return sums


def _centred(
    source: Source, sums: dict[tuple[bool, ...], PatternSums], columns: dict[tuple[bool, ...], list[int]]
) -> Moments:
    """Means per modality over all patterns, then sums of what is left."""
    mean = [torch.zeros(width, dtype=torch.float64, device=source.device) for width in source.widths]
    count = torch.zeros(len(source.widths), dtype=torch.float64, device=source.device)
    for pattern, one in sums.items():
        for m, part in zip(columns[pattern], _split(one.first, source, columns[pattern]), strict=True):
            mean[m] += part
            count[m] += one.rows
    mean = [total / n.clamp(min=1) for total, n in zip(mean, count, strict=True)]
    square = [torch.zeros_like(part) for part in mean]
    for pattern, one in sums.items():
        shift = torch.cat([mean[m] for m in columns[pattern]])
        cross = torch.outer(one.first, shift)
        one.second = one.second - cross - cross.T + one.rows * torch.outer(shift, shift)
        one.first = one.first - one.rows * shift
        for m, part in zip(columns[pattern], _split(one.second.diagonal(), source, columns[pattern]), strict=True):
            square[m] += part.clamp(min=0)
    return Moments(
        names=source.names,
        widths=source.widths,
        chunks=source.chunks,
        dtype=torch.float64,
        in_memory=source.in_memory,
        device=source.device,
        count=count,
        mean=mean,
        square=square,
        rows=source.rows,
        together=source.together,
        shared=source.shared,
        sums=sums,
    )


def _split(stacked: Tensor, source: Source, held: list[int]) -> list[Tensor]:
    return list(stacked.split([source.widths[m] for m in held]))


def _add_pattern(stats: Statistics, expect: Expectation, pattern: tuple[bool, ...], sums: PatternSums) -> None:
    """Add the rows of one pattern: with A = Psi^-1 W, c = A^T mu and V the covariance, m_i = V (A^T z_i - c)."""
    held = [m for m, has in enumerate(pattern) if has]
    V, logdet = expect.factor(torch.tensor([pattern], device=sums.first.device))
    V, n = V[0, 0], sums.rows
    A = torch.cat([expect.scaled[m] for m in held])  # (D, L)
    c = torch.stack([expect.offset[m][0] for m in held]).sum(0)
    seen = A.T @ sums.first
    b1 = seen - n * c  # sum of b_i
    product = sums.second @ A  # (D, L)
    b2 = A.T @ product - torch.outer(seen, c) - torch.outer(c, seen) + n * torch.outer(c, c)  # sum of b_i b_i^T
    first, second = V @ b1, V @ b2 @ V + n * V
    zm = (product - torch.outer(sums.first, c)) @ V
    constant = torch.stack([expect.constant[m][0] for m in held]).sum()
    stats.log_likelihood += 0.5 * ((V * b2).sum() - n * (constant + logdet[0, 0]))
    stats.rows += n
    stats.all1[0] += first
    stats.all2[0] += second
    edges = list(accumulate((expect.params.widths[m] for m in held), initial=0))
    for m, (low, high) in zip(held, pairwise(edges), strict=True):
        stats.n[m] += n
        stats.m1[m, 0] += first
        stats.m2[m, 0] += second
        stats.zm[m][0] += zm[low:high]


def patterns_of(source: Source) -> list[tuple[bool, ...]]:
    """Every pattern that occurs in the rows of all processes, in a fixed order."""
    occurring: set[tuple[bool, ...]] = set()
    for patterns in source.each_chunk(_patterns_in):
        occurring |= patterns
    return sorted(set().union(*gather_objects(occurring)))


def _patterns_in(views: Views) -> set[tuple[bool, ...]]:
    return {tuple(pattern) for pattern in group(views.present)[0].tolist()}
