"""The shared space: the candidates for it, how it is fitted from features of all rows, and the heads that lead into it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calmrl.aligner.features import FeatureMap
from calmrl.arrays import Views, blocks_of_rows
from calmrl.data.features.distributed_rows import DistributedArrays
from calmrl.latent.em import Settings, fit_settings
from calmrl.latent.model import Expectation, Parameters, inverse
from calmrl.latent.rows import Pack, Source, group_rows, open_source, pack
from calmrl.latent.statistics import Sums, block_sums, pattern_moments, patterns_of

FEATURES = ("linear", "kernel")
WHITENING = {"linear": (0.5, 0.0, 0.75), "kernel": (0.5, 0.75)}  # the first is tried before the others
LATENTS = {"linear": (128, 64), "kernel": (256, 64)}
PRIORS = (300.0, 30.0, 100.0, 170.0, 550.0, 1000.0, 1800.0)  # the first is tried before the others
WIDE = {"linear": (256, 100.0), "kernel": (512, 100.0)}  # latents and prior of the second start
KEPT = 4  # factors of the posterior of single rows: for so many sets of modalities


@dataclass(frozen=True)
class Candidate:
    """One setting of the closed form."""

    features: str  # "linear" or "kernel"
    unit_rows: bool
    whitening: float
    latent_dim: int
    prior: float
    second: Candidate | None = None  # of the same features and row scaling; its latents stand beside the others
    relative: bool = False  # whether relative representations stand beside the latents

    def row(self) -> dict[str, Any]:
        """As a plain dict."""
        own = {key: value for key, value in asdict(self).items() if key not in ("second", "relative")}
        own |= {} if self.second is None else {"second": self.second.row()}
        return {**own, "relative": True} if self.relative else own

    @property
    def parts(self) -> list[Candidate]:
        """The candidates whose latents stand side by side, each by itself."""
        first = replace(self, second=None, relative=False)
        return [first] if self.second is None else [first, self.second]


@dataclass(frozen=True)
class Grid:
    """The values allowed for each part of a candidate; a part that the user fixed has one value."""

    features: tuple[str, ...]
    unit_rows: tuple[bool, ...]
    whitening: dict[str, tuple[float, ...]]
    latent_dim: dict[str, tuple[int, ...]]
    prior: tuple[float, ...]
    wide: dict[str, tuple[int, float]]  # empty where the number of latents is fixed
    relative: bool  # whether relative representations may stand beside the latents

    def first(self, features: str, unit_rows: bool) -> Candidate:
        """The candidate that is tried first for these features and this row scaling."""
        return Candidate(features, unit_rows, self.whitening[features][0], self.latent_dim[features][0], self.prior[0])

    def wide_start(self, features: str, unit_rows: bool) -> list[Candidate]:
        """The other start, if there is one: about as many latents as features, held back less.

        It keeps the geometry of every modality, as a regression or a rotation onto one of them does. More latents alone or a
        weaker prior alone gain less, so that a search that changes one part at a time may never come here.
        """
        wide = [self.wide[features]] if features in self.wide else []
        return [replace(self.first(features, unit_rows), latent_dim=latents, prior=prior) for latents, prior in wide]

    def whitenings(self, chosen: Candidate) -> list[Candidate]:
        """The same candidate, or the first of two side by side, with every whitening."""
        return [replace(chosen, whitening=power, second=None) for power in self.whitening[chosen.features]]

    def latents(self, chosen: Candidate) -> list[Candidate]:
        """The same with every number of latents."""
        return [replace(chosen, latent_dim=count, second=None) for count in self.latent_dim[chosen.features]]

    def priors(self, chosen: Candidate) -> list[Candidate]:
        """The same with the priors next to its own."""
        ladder = sorted(self.prior)
        place = ladder.index(chosen.prior)
        return [replace(chosen, prior=prior, second=None) for prior in ladder[max(0, place - 1) : place + 2]]

    def relatives(self, chosen: Candidate) -> list[Candidate]:
        """The same with relative representations beside it."""
        return [replace(chosen, relative=True)] if self.relative else []

    def scalings(self, chosen: Candidate) -> list[Candidate]:
        """The same with either row scaling."""
        return [replace(chosen, unit_rows=unit, second=None) for unit in self.unit_rows]


def make_grid(features: str, unit_rows: bool | str, whitening: Any, latent_dim: Any, prior: Any) -> Grid:
    """The grid from the arguments of the aligner; "auto" means all values."""
    free = bool(latent_dim == "auto"), bool(prior == "auto")
    return Grid(
        FEATURES if features == "auto" else (features,),
        (True, False) if unit_rows == "auto" else (bool(unit_rows),),
        {form: WHITENING[form] if whitening == "auto" else (float(whitening),) for form in FEATURES},
        {form: LATENTS[form] if free[0] else (int(latent_dim),) for form in FEATURES},
        PRIORS if free[1] else (float(prior),),
        {form: (many, weak if free[1] else float(prior)) for form, (many, weak) in WIDE.items() if free[0]},
        free[0] and features != "linear",
    )


ITERATIONS = 5  # of PX-EM; more of them change what is found by no more than chance does
SPREAD_ROWS = 1000  # of each modality, of which inner products are looked at
NOTHING = 1e-9  # a posterior mean shorter than this, where the prior deviation is 1, is zero but for rounding


@dataclass(frozen=True)
class Space:
    """Per modality: weight (r_m, L), bias (L,), and information J (L, L)."""

    weight: list[Tensor]
    bias: list[Tensor]
    information: list[Tensor]
    scale: Tensor | None = None  # (L,) what weights and biases of each latent were multiplied by, if they were

    @property
    def latent_dim(self) -> int:
        """Number of latents, L."""
        return self.information[0].shape[0]

    @staticmethod
    def of(params: Parameters) -> Space:
        """The space of a fitted latent model with one component."""
        expect = Expectation(params, torch.float64)
        weight, bias, information = [], [], []
        for m, J in enumerate(params.information):
            V, _ = inverse(expect.eye + J[0])
            weight.append((expect.scaled[m] @ V).contiguous())
            bias.append(-expect.offset[m][0] @ V)
            information.append(J[0])
        return Space(weight, bias, information)

    def head(self, m: int, features: Tensor) -> Tensor:
        """Posterior mean given modality m alone, (n, L)."""
        return features @ self.weight[m].to(features) + self.bias[m].to(features)

    def unit(self, m: int, features: Tensor) -> Tensor:
        """`head`, scaled to unit length."""
        return direction(self.head(m, features))

    def posterior(
        self, heads: list[Tensor | None], present: Tensor, which: Sequence[int], weights: Sequence[float] | None = None
    ) -> Tensor:
        """The posterior mean given all that each row has, (n, L); 0 for rows that have nothing.

        Column j of `present` is a value of modality `which[j]`, and `heads[j]` holds the rows that have it, in their order. The
        likelihood of a column is raised to the power of its weight. One factorisation per pattern.
        """
        mean = torch.zeros((len(present), self.latent_dim), dtype=torch.float64, device=present.device)
        for _, rows, part in self._parts(heads, present, which, weights):
            mean[rows] += part
        return mean

    def posterior_parts(
        self, heads: list[Tensor | None], present: Tensor, which: Sequence[int], weights: Sequence[float] | None = None
    ) -> Tensor:
        """What each column gives to the posterior mean, (columns, n, L); their sum is `posterior`."""
        shape = (len(which), len(present), self.latent_dim)
        out = torch.zeros(shape, dtype=torch.float64, device=present.device)
        for j, rows, part in self._parts(heads, present, which, weights):
            out[j, rows] = part.to(out)
        return out

    def _parts(
        self, heads: list[Tensor | None], present: Tensor, which: Sequence[int], weights: Sequence[float] | None
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(column, rows, V_Omega w (I + J_m) h_m) for every column of every pattern."""
        place = present.long().cumsum(0) - 1  # where a row stands among those that have the column
        eye = torch.eye(self.latent_dim, dtype=torch.float64, device=present.device)
        for rows, held in _patterns(present):
            power = {j: 1.0 if weights is None else weights[j] for j in held}
            if list(power.values()) == [1.0]:
                yield held[0], rows, _rows(heads[held[0]], place[rows, held[0]])
                continue
            information = {j: self.information[which[j]].to(eye) for j in held}
            factor_of = self._kept_factor if len(present) == 1 else self._factor  # one row: a query, asked like others
            factor = factor_of(tuple((which[j], power[j]) for j in held), eye.device)
            for j in held:
                head = _rows(heads[j], place[rows, j])
                if len(rows) < self.latent_dim:
                    scaled = power[j] * (head + head @ information[j])
                    yield j, rows, torch.cholesky_solve(scaled.T, factor).T
                else:
                    yield j, rows, head @ torch.cholesky_solve(power[j] * (eye + information[j]), factor).T

    def _factor(self, powers: tuple[tuple[int, float], ...], device: torch.device) -> Tensor:
        """The Cholesky factor of I + the sum of w J_m over (m, w)."""
        eye = torch.eye(self.latent_dim, dtype=torch.float64, device=device)
        return torch.linalg.cholesky(eye + sum(weight * self.information[m].to(eye) for m, weight in powers))

    @cached_property
    def _kept_factor(self) -> Callable[[tuple[tuple[int, float], ...], torch.device], Tensor]:
        return lru_cache(maxsize=KEPT)(self._factor)

    def __getstate__(self) -> dict[str, Any]:
        """Without the factors that are kept."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def variance(self, present: Tensor, which: Sequence[int]) -> Tensor:
        """tr(P V) given what each row has, (n,): V is its posterior covariance, P = I - (I + sum over all m of J_m)^-1."""
        trace = torch.zeros(len(present), dtype=torch.float64, device=present.device)
        eye = torch.eye(self.latent_dim).to(trace)
        informed = eye - torch.linalg.inv(eye + sum(J.to(trace) for J in self.information))
        for rows, held in _patterns(present):
            total = eye + sum(self.information[which[j]].to(trace) for j in held)
            shares = (informed * torch.linalg.inv(total)).sum(0)  # the diagonal of a product of symmetric matrices
            trace[rows] = (shares if self.scale is None else shares * self.scale.to(trace) ** 2).sum()
        return trace


def _patterns(present: Tensor) -> Iterator[tuple[Tensor, list[int]]]:
    """(rows, columns that they have) for every pattern but the empty one."""
    patterns, order, bounds = group_rows(present)
    for p, pattern in enumerate(patterns.tolist()):
        if any(pattern):
            yield order[bounds[p] : bounds[p + 1]], [j for j, has in enumerate(pattern) if has]


def direction(mean: Tensor) -> Tensor:
    """Posterior means (n, L) scaled to unit length; exactly zero where they say nothing, which has no direction."""
    length = mean.norm(dim=1, keepdim=True)
    return torch.where(length > NOTHING, mean / length.clamp(min=NOTHING), 0.0)


def head_maps(maps: list[FeatureMap], whitening: float, space: Space) -> list[Tensor]:
    """Per modality one matrix for `FeatureMap.project`: projection on features, whitening and weight of the head."""
    return [
        (feature_map.projection * feature_map.scale(whitening)) @ weight.to(feature_map.projection)
        for feature_map, weight in zip(maps, space.weight, strict=True)
    ]


def _rows(head: Tensor | None, index: Tensor) -> Tensor:
    assert head is not None, "a modality that a row has is without a head"
    return head[index]


def fit_space(source: Source, candidate: Candidate, seed: int) -> Space:
    """The space after ITERATIONS of PX-EM on whitened features."""
    latents = min(candidate.latent_dim, sum(source.widths))
    settings = Settings(latents, prior=candidate.prior, iterations=ITERATIONS)
    fit = fit_settings(source, settings, seed=seed, max_iter=ITERATIONS, tol=0.0)
    return Space.of(fit.params.moved(source.mean))


def side_by_side(candidate: Candidate, maps: list[FeatureMap], spaces: Sequence[Space]) -> Space:
    """The spaces of the parts of a candidate as one: their latents one after the other, independent of each other.

    Features are as the first part takes them. Each part is scaled so that the squared length of its posterior means, given one
    modality, is one on average over the modalities: E |h^m|^2 = tr J_m (I + J_m)^-1.
    """
    if len(spaces) == 1:
        return spaces[0]
    weight, bias, scale = [], [], []
    for space in spaces:
        kept = [torch.linalg.solve(torch.eye(len(J)).to(J) + J, J).trace() for J in space.information]
        length = torch.stack(kept).mean().sqrt()
        scale.append((1 / length if length > 0 else torch.ones_like(length)).expand(space.latent_dim))
    for m, feature_map in enumerate(maps):
        own, turned = feature_map.scale(candidate.whitening), []
        for part, space, by in zip(candidate.parts, spaces, scale, strict=True):
            its = feature_map.scale(part.whitening) / torch.where(own > 0, own, 1.0)
            turned.append(its.to(space.weight[m])[:, None] * space.weight[m] * by)
        weight.append(torch.cat(turned, dim=1))
        bias.append(torch.cat([space.bias[m] * by for space, by in zip(spaces, scale, strict=True)]))
    information = [torch.block_diag(*blocks) for blocks in zip(*(space.information for space in spaces), strict=True)]
    return Space(weight, bias, information, torch.cat(scale))


def beside_relative(space: Space, maps: list[FeatureMap], features: Sequence[Tensor]) -> Space:
    """The space with the relative representations of `maps` beside its latents; `features` of training rows, per modality.

    Both vary alike: the inner products of different modalities have the same standard deviation. In the posterior they count as
    a latent that every modality shows with as much noise as variance, so that those of several modalities are averaged.
    """
    count = maps[0].beside
    eye = torch.eye(count, dtype=torch.float64, device=space.bias[0].device)
    own = [
        part[:, :-count] @ weight.to(part) + bias.to(part)
        for part, weight, bias in zip(features, space.weight, space.bias, strict=True)
    ]
    by = eye.diagonal() * math.sqrt(spread(own) / spread([part[:, -count:] for part in features]))
    weight = [torch.block_diag(w, eye * by) for w in space.weight]
    bias = [torch.cat([b, torch.zeros_like(by)]) for b in space.bias]
    information = [torch.block_diag(J, eye) for J in space.information]
    before = torch.ones_like(space.bias[0]) if space.scale is None else space.scale
    # a posterior mean of `count` such latents has the squared length count / 2, and relative representations one
    return Space(weight, bias, information, torch.cat([before, by * math.sqrt(2 / count)]))


def spread(vectors: Sequence[Tensor]) -> float:
    """Standard deviation of the inner products between different modalities; 1 where there are none.

    It follows from the mean and the second moments of each modality: the products x . y themselves, of which there are far more
    than numbers in X^T X, have the mean (mean of x) . (mean of y) and the mean square <X^T X, Y^T Y> over the number of pairs.
    """
    some = [rows[:SPREAD_ROWS].double() for rows in vectors]
    moments = [(rows.mean(0), rows.T @ rows / len(rows)) if len(rows) else None for rows in some]
    found = []
    for a, b in combinations(range(len(some)), 2):
        (left, right), pairs = (moments[a], moments[b]), len(some[a]) * len(some[b])
        if left is not None and right is not None and pairs > 1:
            variance = (left[1] * right[1]).sum() - (left[0] @ right[0]).square()
            found.append(float((variance.clamp(min=0) * pairs / (pairs - 1)).sqrt()))
    return float(np.mean(found)) if found and np.mean(found) > 0 else 1.0


def source_of_features(names: list[str], features: list[Tensor], present: Tensor, shared: bool) -> Source:
    """Features (n_m, r_m) of the rows that have each modality as a source of rows in memory."""
    full = {}
    for m, name in enumerate(names):
        values = features[m].new_zeros((len(present), features[m].shape[1]))
        values[present[:, m]] = features[m]
        full[name] = values
    return open_source(full, present, shared=shared)


FEATURE_BYTES = 1 << 26  # features are computed in blocks of about this size
ROWS_PER_FEATURE = 4  # with more rows in memory, sums by pattern are cheaper than the rows
SUM_BYTES = 1 << 30  # sums by pattern may take this much; more patterns are gone through row by row


@dataclass(frozen=True)
class MappedRows:
    """Rows -> whitened features; small enough to be sent to where the rows are."""

    maps: list[FeatureMap]
    scales: list[Tensor]
    dtype: torch.dtype

    @property
    def widths(self) -> tuple[int, ...]:
        """Features per modality."""
        return tuple(feature_map.width for feature_map in self.maps)

    def blocks(self, views: Views) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """The rows of a chunk as features, a bounded number at a time."""
        for start, stop in blocks_of_rows(len(views), 8 * sum(self.widths), FEATURE_BYTES):
            present = views.present[start:stop]
            yield self._block(views, start, stop, present), present

    def _block(self, views: Views, start: int, stop: int, present: Tensor) -> dict[str, Tensor]:
        block = {}
        for m, values in enumerate(views.rows(start, stop)):
            features = torch.zeros((stop - start, self.widths[m]), dtype=self.dtype, device=present.device)
            if values is not None:
                rows = values.detach()[present[:, m]].to(self.dtype)
                features[present[:, m]] = self.maps[m](rows) * self.scales[m].to(rows)
            block[views.names[m]] = features
        return block

    def packs(self, views: Views) -> Iterator[Pack]:
        """Blocks of features sorted by pattern."""
        for features, present in self.blocks(views):
            yield pack(list(features.values()), present, self.widths, self.dtype)


@dataclass(frozen=True)
class MappedSource:
    """The rows of a source as whitened features, in blocks, as often as wanted."""

    source: Source
    mapping: MappedRows

    @property
    def widths(self) -> tuple[int, ...]:
        """Features per modality."""
        return self.mapping.widths

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        for views in self.source.chunks():
            yield from self.mapping.blocks(views)


@torch.no_grad()
def _sums_of(views: Views, mapping: MappedRows, patterns: list[tuple[bool, ...]]) -> Sums:
    """Sums by pattern of the features of one block of rows."""
    return block_sums(mapping.packs(views), mapping.widths, patterns)


def fit_all(source: Source, maps: list[FeatureMap], candidate: Candidate, seed: int) -> Space:
    """The space of all rows of all processes; rows are read once where their sums by pattern fit into memory."""
    spaces = []
    for part in candidate.parts:
        scales = [feature_map.scale(part.whitening) for feature_map in maps]
        mapped = MappedSource(source, MappedRows(maps, scales, source.dtype))
        spaces.append(fit_space(_feature_source(mapped), part, seed))
    return side_by_side(candidate, maps, spaces)


def _feature_source(mapped: MappedSource) -> Source:
    source, width = mapped.source, sum(mapped.widths)
    here = source.in_memory or isinstance(source.distributed and source.distributed.rows, DistributedArrays)
    if here and source.rows <= ROWS_PER_FEATURE * width:
        blocks: list[Any] = list(mapped)
        features = {name: torch.cat([z[name] for z, _ in blocks]) for name in source.names}
        return open_source(features, torch.cat([present for _, present in blocks]))
    patterns = patterns_of(source)
    sizes = [sum(w for w, has in zip(mapped.widths, pattern, strict=True) if has) for pattern in patterns]
    if 8 * sum(size**2 for size in sizes) <= SUM_BYTES:
        parts = source.each_chunk(_sums_of, mapped.mapping, patterns)
        return pattern_moments(replace(source, widths=mapped.widths, distributed=None), parts, patterns)
    return open_source(mapped, None)
