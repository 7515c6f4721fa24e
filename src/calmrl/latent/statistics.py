"""Expected sufficient statistics: all that the M-step needs of the data, additive over rows and processes.

The E-step comes to the same sums in three ways, each the cheapest for its data: one component takes one product per
modality and pack, whatever the patterns (`_add_single`); a mixture needs responsibilities, pattern by pattern (`_add_mixture`);
and where there are many more rows than columns, sums of products by pattern replace the rows altogether (`Moments`). Rows with
holes inside a modality are added to any of them (`_add_torn`), with sums of their own for every column. Batches of a stream are
in `calmrl.latent.online`, which keeps them apart from what is settled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from calmrl._support.distributed import all_sum, gather_objects
from calmrl.arrays import Views
from calmrl.latent.model import EntryTable, Expectation, Parameters, entry_posteriors, symmetric, triangle
from calmrl.latent.rows import Pack, Source, Torn, group_rows

ROWS_PER_PRODUCT = 32  # of a pattern, on average, from which on a product of its own costs little
PRODUCT_BYTES = 1 << 26  # that these may take


@dataclass
class Statistics:
    """Sums over rows, weighted by responsibility; [m] means over the rows that have modality m. float64.

    `n`, `m1` and `m2` are over whole rows. What rows with holes add to them differs from column to column: it is in `own`.
    """

    n: Tensor  # (k, K) rows that have m
    m1: Tensor  # (k, K, L) sum of m_i
    m2: Tensor  # (k, K, L, L) sum of m_i m_i^T + V
    zm: list[Tensor]  # (K, d, L) sum of z_i m_i^T
    z1: list[Tensor]  # (K, d) sum of z_i
    z2: list[Tensor]  # (K, d) sum of z_i^2
    rows: Tensor  # (K,) all rows
    all1: Tensor  # (K, L) sum of m_i over all rows
    all2: Tensor  # (K, L, L) sum of m_i m_i^T + V over all rows
    log_likelihood: Tensor  # () sum of log p(z_i)
    own: list[Tensor] = field(
        default_factory=list
    )  # (K, d, L + 1, L + 1) sum of E[[b, 1] [b, 1]^T] over rows with holes

    @staticmethod
    def zeros(params: Parameters) -> Statistics:
        """Nothing summed up yet."""
        k, K, L = len(params.names), params.n_components, params.latent_dim

        def new(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=params.W[0].device)

        return Statistics(
            n=new(k, K),
            m1=new(k, K, L),
            m2=new(k, K, L, L),
            zm=[new(K, d, L) for d in params.widths],
            z1=[new(K, d) for d in params.widths],
            z2=[new(K, d) for d in params.widths],
            rows=new(K),
            all1=new(K, L),
            all2=new(K, L, L),
            log_likelihood=new(),
        )

    def tensors(self) -> list[Tensor]:
        flat: list[Tensor] = []
        for part in fields(self):
            value = getattr(self, part.name)
            flat.extend(value if isinstance(value, list) else [value])
        return flat

    def count(self, m: int) -> Tensor:
        """Rows in which each column of modality m is observed, (K, d)."""
        n = self.n[m][:, None].expand_as(self.z1[m])
        return n + self.own[m][..., -1, -1] if self.own else n

    def with_own(self) -> None:
        """In place: room for rows with holes."""
        if not self.own:
            L = self.m1.shape[-1]
            self.own = [zm.new_zeros((*zm.shape[:2], L + 1, L + 1)) for zm in self.zm]

    def combine(self, other: Statistics, keep: float, add: float) -> None:
        """In place: keep * self + add * other."""
        if self.own or other.own:
            self.with_own()
            other.with_own()
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.mul_(keep).add_(theirs, alpha=add)

    def moved(self, shift: list[Tensor]) -> Statistics:
        """The statistics of the same rows after adding `shift` to every z^m."""
        z1, z2, zm = [], [], []
        for m, s in enumerate(shift):
            n = self.count(m)
            m1 = self.m1[m][:, None] + self.own[m][..., :-1, -1] if self.own else self.m1[m][:, None]
            z1.append(self.z1[m] + n * s)
            z2.append(self.z2[m] + 2 * s * self.z1[m] + n * s**2)
            zm.append(self.zm[m] + s[:, None] * m1)
        return replace(self, z1=z1, z2=z2, zm=zm)

    def rebased(self, mean: Tensor, chol: Tensor) -> Statistics:
        """The statistics in latents chol^-1 (beta - mean), (K, L) and (K, L, L): what parameter expansion turns them into."""
        eye = torch.eye(chol.shape[-1], dtype=chol.dtype, device=chol.device)
        back = torch.linalg.solve_triangular(chol, eye.expand_as(chol), upper=False)  # chol^-1

        def first(m1: Tensor, n: Tensor) -> Tensor:
            return (back @ (m1 - n[..., None] * mean)[..., None])[..., 0]

        def second(m2: Tensor, m1: Tensor, n: Tensor) -> Tensor:
            cross = m1[..., :, None] * mean[..., None, :]
            moved = m2 - cross - cross.mT + n[..., None, None] * mean[..., :, None] * mean[..., None, :]
            return back @ moved @ back.mT

        zm = [(zm - z1[..., None] * mean[:, None]) @ back.mT for zm, z1 in zip(self.zm, self.z1, strict=True)]
        whole = torch.zeros((len(mean), 1, len(eye) + 1, len(eye) + 1), dtype=eye.dtype, device=eye.device)
        whole[:, 0, :-1, :-1], whole[:, 0, :-1, -1], whole[:, 0, -1, -1] = back, -(back @ mean[..., None])[..., 0], 1.0
        return replace(
            self,
            own=[whole @ own @ whole.mT for own in self.own],
            zm=zm,
            m1=first(self.m1, self.n),
            m2=second(self.m2, self.m1, self.n),
            all1=first(self.all1, self.rows),
            all2=second(self.all2, self.all1, self.rows),
        )

    def over_processes(self) -> None:
        """In place: the sum over all processes, in one message."""
        for mine, total in zip(self.tensors(), all_sum(self.tensors()), strict=True):
            mine.copy_(total)


def add_pack(stats: Statistics, packed: Pack, expect: Expectation, moments: bool = True) -> None:
    """Add the rows of a pack to `stats`.

    With one component `z1`, `z2` and the part of the log-likelihood that follows from them do not depend on the
    parameters' posterior: with `moments=False` they are left to the caller, who knows their constant totals.
    """
    if len(packed.order) or packed.torn is None:
        if expect.params.n_components == 1:
            _add_single(stats, packed, expect, moments)
        else:
            _add_mixture(stats, packed, expect)
    if packed.torn is not None:
        _add_torn(stats, packed.torn, expect.params, moments or expect.params.n_components > 1)


def _add_single(stats: Statistics, packed: Pack, expect: Expectation, moments: bool) -> None:
    """One component: one product per modality, whatever the patterns."""
    b, means = expect.means(packed)
    k, L = len(packed.z), expect.params.latent_dim
    sizes = torch.tensor(packed.sizes, dtype=torch.float64, device=b.device)  # (P,)
    held = packed.patterns.double() * sizes[:, None]  # (P, k) rows with the pattern and the modality
    constant = packed.patterns.double() @ torch.stack([c[0] for c in expect.constant])  # (P,)
    for group, V, logdet in expect.groups(packed.patterns):
        flat = V.reshape(len(V), L * L)
        stats.m2[:, 0] += (held[group].T @ flat).reshape(k, L, L)
        stats.all2[0] += (sizes[group] @ flat).reshape(L, L)
        stats.log_likelihood -= 0.5 * (sizes[group] @ (constant[group] + logdet[:, 0]))
    stats.log_likelihood += 0.5 * (b * means).sum(dtype=torch.float64)
    stats.n[:, 0] += held.sum(0)
    stats.rows += float(len(packed.order))
    stats.all1[0] += means.sum(0, dtype=torch.float64)
    enough = min(L, ROWS_PER_PRODUCT) * len(packed.patterns) <= len(packed.order)
    by_pattern = enough and 8 * len(packed.patterns) * L**2 <= max(PRODUCT_BYTES, 8 * len(packed.order) * L)
    if by_pattern:
        _add_products(stats, packed, means)
    else:
        stats.all2[0] += means.T @ means
    for m, z in enumerate(packed.z):
        mine = means.index_select(0, packed.places[m])  # (N_m, L)
        stats.m1[m, 0] += mine.sum(0, dtype=torch.float64)
        if not by_pattern:
            stats.m2[m, 0] += mine.T @ mine
        if stats.zm[m].dtype == z.dtype:
            stats.zm[m][0].addmm_(z.T, mine)
        else:
            stats.zm[m][0] += z.T @ mine
    if moments:
        z1 = [z.sum(0, dtype=torch.float64) for z in packed.z]
        z2 = [z.square().sum(0, dtype=torch.float64) for z in packed.z]
        add_moments(stats, expect.params, z1, z2)


def _add_products(stats: Statistics, packed: Pack, means: Tensor) -> None:
    """Add sum of m_i m_i^T pattern by pattern: every row is multiplied once, however many modalities it has."""
    k, L = packed.patterns.shape[1], means.shape[1]
    products = torch.stack([rows.T @ rows for rows in means.split(packed.sizes)]).double()  # (P, L, L)
    stats.m2[:, 0] += (packed.patterns.double().T @ products.flatten(1)).reshape(k, L, L)
    stats.all2[0] += products.sum(0)


def _add_mixture(stats: Statistics, packed: Pack, expect: Expectation) -> None:
    """Several components: responsibilities and products pattern by pattern."""
    K, L = expect.params.n_components, expect.params.latent_dim
    zm = [z.new_zeros((z.shape[1], K * L)) for z in packed.z]
    for p, V, logdet in expect.factored(packed.patterns):
        held = packed.slices(p)
        post = expect.rows(held, V, logdet)
        log_likelihood = torch.logsumexp(post.log_joint.double(), dim=1)
        resp = (post.log_joint.double() - log_likelihood[:, None]).exp()  # (n, K)
        weight = resp.sum(0)
        resp = resp.to(expect.dtype)
        product = resp[..., None] * post.mean  # (n, K, L)
        first = product.sum(0, dtype=torch.float64)
        raw = (product.permute(1, 2, 0) @ post.mean.transpose(0, 1)).double()  # (K, L, L)
        second = raw + weight[:, None, None] * V
        modalities = [m for m, _ in held]
        stats.log_likelihood += log_likelihood.sum()
        stats.n[modalities] += weight
        stats.m1[modalities] += first
        stats.m2[modalities] += second
        stats.rows += weight
        stats.all1 += first
        stats.all2 += second
        for m, z in held:
            stats.z1[m] += (resp.T @ z).double()
            stats.z2[m] += (resp.T @ (z * z)).double()
            zm[m].addmm_(z.T, product.reshape(-1, K * L))
    for m, total in enumerate(zm):
        stats.zm[m] += total.reshape(-1, K, L).permute(1, 0, 2).double()


def _add_torn(stats: Statistics, torn: Torn, params: Parameters, moments: bool) -> None:
    """Rows with holes: what they say of the latents counts for the columns that they have."""
    stats.with_own()
    K, L, D = params.n_components, params.latent_dim, torn.x.shape[1]
    i, j = triangle(L + 1, torn.x.device)
    table = EntryTable.of(params)
    own = torn.x.new_zeros((K, D, len(i)))
    z1, z2, zm = torn.x.new_zeros((K, D)), torn.x.new_zeros((K, D)), torn.x.new_zeros((D, K * L))
    for post in entry_posteriors(params, torn):
        log_likelihood = torch.logsumexp(post.log_joint, dim=1)
        resp = (post.log_joint - log_likelihood[:, None]).exp()  # (n, K)
        ones = torch.cat([post.mean, torch.ones_like(post.mean[..., :1])], dim=2)  # (n, K, L + 1)
        second = ones[..., :, None] * ones[..., None, :]
        second[..., :L, :L] += post.covariance
        second = resp[..., None, None] * second  # (n, K, L + 1, L + 1)
        stats.log_likelihood += log_likelihood.sum()
        total = second.sum(0)
        stats.rows += total[:, L, L]
        stats.all1 += total[:, :L, L]
        stats.all2 += total[:, :L, :L]
        by_pattern = second.new_zeros((len(post.patterns), K, len(i)))
        by_pattern.index_add_(0, post.slots, second[..., i, j])
        own += post.patterns.double().T @ by_pattern.transpose(0, 1)  # (K, D, T)
        zm += post.x.T @ (resp[..., None] * post.mean).flatten(1)
        if moments:
            z1 += resp.T @ post.x
            z2 += resp.T @ post.x.square()
        else:  # the caller adds what follows from sums of z and z^2
            squares = post.patterns.double() @ (table.mu.square() * table.precision).T  # (P, K)
            stats.log_likelihood += 0.5 * (post.distance - squares[post.slots]).sum()
    edges = list(accumulate(params.widths, initial=0))
    full = symmetric(own, L + 1)
    for m, (low, high) in enumerate(pairwise(edges)):
        stats.own[m] += full[:, low:high]
        stats.zm[m] += zm[low:high].reshape(-1, K, L).permute(1, 0, 2)
        stats.z1[m] += z1[:, low:high]
        stats.z2[m] += z2[:, low:high]


def add_moments(stats: Statistics, params: Parameters, z1: list[Tensor], z2: list[Tensor]) -> None:
    """One component: add sum z and sum z^2 per modality, and what they contribute to the log-likelihood."""
    for m, (first, second) in enumerate(zip(z1, z2, strict=True)):
        stats.z1[m] += first
        stats.z2[m] += second
        stats.log_likelihood -= 0.5 * ((second - 2 * params.mu[m][0] * first) / params.noise[m][0]).sum()


# ---- sums by pattern instead of rows


@dataclass
class PatternSums:
    """Sums over the rows of one pattern; D is the width of all its modalities together. float64."""

    rows: Tensor  # ()
    first: Tensor  # (D,)
    second: Tensor  # (D, D)


Sums = dict[tuple[bool, ...], PatternSums]


@dataclass
class Moments(Source):
    """A source that EM can use without its rows, from sums of centred values; for one component."""

    sums: Sums = field(default_factory=dict)

    def expected(self, params: Parameters) -> Statistics:
        """The E-step over all rows, from the sums."""
        expect = Expectation(params, torch.float64)
        stats = Statistics.zeros(params)
        for pattern, sums in self.sums.items():
            _add_pattern(stats, expect, pattern, sums)
        add_moments(stats, params, [torch.zeros_like(sq) for sq in self.square], self.square)
        return stats


def _add_pattern(stats: Statistics, expect: Expectation, pattern: tuple[bool, ...], sums: PatternSums) -> None:
    """Add the rows of one pattern: with A = Psi^-1 W, c = A^T mu and V the covariance, m_i = V (A^T z_i - c)."""
    held = [m for m, has in enumerate(pattern) if has]
    ((_, V, logdet),) = expect.groups(torch.tensor([pattern], device=sums.first.device))
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
    occurring: set[tuple[bool, ...]] = set().union(*source.each_chunk(_patterns_in))
    return sorted(set().union(*gather_objects(occurring)))


def _patterns_in(views: Views) -> set[tuple[bool, ...]]:
    return {tuple(pattern) for pattern in group_rows(views.present)[0].tolist()}


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


def pattern_moments(source: Source, parts: Iterable[Sums], patterns: list[tuple[bool, ...]]) -> Moments:
    """The source as moments, from the `block_sums` of every block of rows, over all processes.

    `patterns` lists every pattern of every process, in the same order everywhere (`patterns_of`).
    """
    sums: Sums = {}
    for part in parts:
        for pattern, one in part.items():
            total = sums.setdefault(pattern, one)
            if total is not one:
                total.rows += one.rows
                total.first += one.first
                total.second += one.second
    flat = all_sum([t for pattern in patterns for t in vars(sums[pattern]).values()])
    sums = {pattern: PatternSums(*flat[3 * i : 3 * i + 3]) for i, pattern in enumerate(patterns)}
    return _centred(source, sums)


def _centred(source: Source, sums: Sums) -> Moments:
    """Means per modality over all patterns, then sums of what is left."""
    held = {pattern: [m for m, has in enumerate(pattern) if has] for pattern in sums}

    def split(stacked: Tensor, pattern: tuple[bool, ...]) -> Iterator[tuple[int, Tensor]]:
        parts = stacked.split([source.widths[m] for m in held[pattern]])
        return zip(held[pattern], parts, strict=True)

    mean = [torch.zeros(width, dtype=torch.float64, device=source.device) for width in source.widths]
    count = torch.zeros(len(source.widths), dtype=torch.float64, device=source.device)
    for pattern, one in sums.items():
        for m, part in split(one.first, pattern):
            mean[m] += part
            count[m] += one.rows
    mean = [total / n.clamp(min=1) for total, n in zip(mean, count, strict=True)]
    square = [torch.zeros_like(part) for part in mean]
    for pattern, one in sums.items():
        shift = torch.cat([mean[m] for m in held[pattern]])
        cross = torch.outer(one.first, shift)
        one.second = one.second - cross - cross.T + one.rows * torch.outer(shift, shift)
        one.first = one.first - one.rows * shift
        for m, part in split(one.second.diagonal(), pattern):
            square[m] += part.clamp(min=0)
    kept: Any = {part.name: getattr(source, part.name) for part in fields(Source) if part.init}
    now = {"dtype": torch.float64, "count": count, "mean": mean, "square": square, "distributed": None, "entries": None}
    return Moments(**{**kept, **now}, sums=sums)
