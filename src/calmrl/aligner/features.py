"""Features of one modality, made once: centred rows, principal directions of a kernel or of the values, and their variance.

For the rows x of one modality, centred and, with `unit`, scaled to length one:

    linear   k(x, y) = x . y
    kernel   k(x, y) = exp(-|x - y|^2 / 2 h^2) + w x . y / mean |x|^2,    h = s * median distance of training rows,

the features are the leading principal directions of the centred kernel, in closed form, with variances l_i. Partial
whitening divides direction i by l_i^(p/2): p = 0 leaves it as it is, p = 1 makes all directions count alike.

Beside these an item may be described by how near it is to training rows, its relative representation: with u the linear
features divided by the root of their standard deviation and scaled to unit length, a_1 ... a_N those of training rows,

    r_i(x) = max(0, u . a_i)^2,    0 where row i lacks the modality,

scaled to unit length. Number i means row i in every modality, so that modalities are comparable without anything learned.

Features are computed in float64, whatever the dtype of the rows: a direction with a share r of the largest variance multiplies
rounding errors by about 1/r, and shares down to RANK are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from calmrl._support.linalg import principal_directions
from calmrl.arrays import blocks_of_rows

BANDWIDTH = 0.7  # s
LINEAR_SHARE = 0.5  # w
MEDIAN_ROWS = 400
KERNEL_DIRECTIONS = 512
LINEAR_DIRECTIONS = 256
KERNEL_BYTES = 1 << 24  # kernel values held at once: few enough to stay in the cache
RANK = 1e-10  # directions with less than this share of the largest variance are rounding


@dataclass(frozen=True)
class Relative:
    """A map from prepared rows (n, d) to how near each is to N training rows, (n, N); no row is longer than one."""

    offset: Tensor  # (d,)
    projection: Tensor  # (d, r)
    anchors: Tensor  # (N, r), of length one; zero for rows that lack the modality

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, N) of rows in float64."""
        offset, projection, anchors = (part.to(rows) for part in (self.offset, self.projection, self.anchors))
        near = normalize((rows - offset) @ projection, dim=1) @ anchors.T
        return normalize(near.clamp_(min=0).square_(), dim=1)


@dataclass(frozen=True)
class FeatureMap:
    """A map x -> features, (n, d) -> (n, r). For the linear form `landmarks` is empty and `projection` is (d, r).

    With `relative`, its N numbers stand beside those of the landmarks or columns: `offset` and `projection` have N more rows,
    and the last of the r features, `beside` of them, come from there alone.
    """

    centre: Tensor  # (d,)
    unit: bool
    landmarks: Tensor  # (n_landmarks, d), prepared; (0, d) for the linear form
    shape: Tensor  # (2,): 1 / 2 h^2, and w / mean |x|^2; kernel only
    offset: Tensor  # (n_landmarks,) or (d,): subtracted before the projection
    projection: Tensor  # (n_landmarks, r) or (d, r)
    variance: Tensor  # (r,)
    relative: Relative | None = None
    beside: int = 0

    @property
    def width(self) -> int:
        """Number of features, r."""
        return self.projection.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """Features of rows, in their dtype."""
        return self.project(x, self.projection).to(x.dtype)

    def project(self, x: Tensor, matrix: Tensor, centre: Tensor | None = None) -> Tensor:
        """(k(x, landmarks) - offset) @ matrix, float64, computed in blocks of bounded size.

        `centre` stands for that of the training rows, where rows of another collection lie around another one.
        """
        own = self.centre if centre is None else centre
        centre, landmarks, offset, matrix = (
            part.to(x.device, torch.float64) for part in (own, self.landmarks, self.offset, matrix)
        )
        parts = []
        for start, stop in blocks_of_rows(len(x), 32 * len(matrix), KERNEL_BYTES):
            rows = prepared(x[start:stop].double(), centre, self.unit)
            compared = kernel(rows, landmarks, *self.shape.tolist()) if len(landmarks) else rows
            if self.relative is not None:
                compared = torch.cat([compared, self.relative(rows)], dim=1)
            parts.append(compared.sub_(offset) @ matrix)
        return torch.cat(parts) if parts else matrix.new_zeros((0, matrix.shape[1]))

    def near(self, x: Tensor) -> Tensor:
        """The features that come from `relative` alone, the last ones, in the dtype of the rows."""
        assert self.relative is not None, "there are no relative representations"
        directions = self.projection[-len(self.relative.anchors) :, -self.beside :].to(x.device)
        parts = []
        for start, stop in blocks_of_rows(len(x), 32 * len(directions), KERNEL_BYTES):
            rows = prepared(x[start:stop].double(), self.centre.to(x.device, torch.float64), self.unit)
            parts.append((self.relative(rows) @ directions).to(x.dtype))
        return torch.cat(parts) if parts else x.new_zeros((0, self.beside))

    def scale(self, whitening: float) -> Tensor:
        """l_i^(-p/2), (r,), times the number that makes the mean variance of the scaled features one; 1 for relative ones."""
        own, beside = self.variance[: self.width - self.beside], torch.ones(self.beside).to(self.variance)
        positive = own > 0
        scale = torch.where(positive, torch.where(positive, own, 1.0) ** (-whitening / 2), 0.0)
        mean = (scale.square() * own).mean()
        return torch.cat([scale / mean.sqrt() if mean > 0 else torch.ones_like(scale), beside])


def prepared(x: Tensor, centre: Tensor, unit: bool) -> Tensor:
    """Centred rows, of length one if `unit`; a row that equals the centre stays zero."""
    rows = x - centre
    if not unit:
        return rows
    length = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(length > 0, length, 1.0)


def kernel(x: Tensor, y: Tensor, sharpness: float, linear: float) -> Tensor:
    """exp(-sharpness |x - y|^2) + linear x . y, (n, m)."""
    products = x @ y.T
    power = (2 * sharpness * products).sub_(sharpness * x.square().sum(1)[:, None]).sub_(sharpness * y.square().sum(1))
    return power.clamp_(max=0).exp_().add_(products, alpha=linear)


def fit_linear(x: Tensor, unit: bool) -> FeatureMap:
    """Principal directions of the rows of `x`, at most LINEAR_DIRECTIONS."""
    if not len(x):
        return _nothing(x.double(), unit)
    x = x.double()
    centre = _centre(x)
    rows = prepared(x, centre, unit)
    middle = rows.mean(0)
    rows = rows - middle
    n, d = rows.shape
    if n < d:  # the same directions from the smaller matrix
        values, vectors = _leading(rows @ rows.T, LINEAR_DIRECTIONS)
        directions = rows.T @ vectors / _root(values)
    else:
        values, directions = _leading(rows.T @ rows, LINEAR_DIRECTIONS)
    return FeatureMap(centre, unit, x[:0], x.new_zeros(2), middle, directions, values / n)


def fit_kernel(x: Tensor, unit: bool, generator: torch.Generator, landmarks: int) -> FeatureMap:
    """Kernel principal directions from at most `landmarks` rows of `x`, at most KERNEL_DIRECTIONS."""
    return kernel_of_rows(x, unit, generator, landmarks)[0]


def kernel_of_rows(
    x: Tensor, unit: bool, generator: torch.Generator, landmarks: int
) -> tuple[FeatureMap, Tensor | None]:
    """(as `fit_kernel`, the features of `x` where all rows are landmarks: eigenvectors times the roots of their values)."""
    if not len(x):
        return _nothing(x.double(), unit), None
    given, x = x.dtype, x.double()
    centre = _centre(x)
    order = torch.randperm(len(x), generator=generator).to(x.device)[:landmarks]
    rows = prepared(x[order], centre, unit)
    few = rows[:MEDIAN_ROWS]
    distances = torch.pdist(few)
    width = BANDWIDTH * float(distances.median()) if len(distances) else 0.0
    power = float(rows.square().sum(1).mean())
    shape = (0.5 / width**2 if width > 0 else 1.0, LINEAR_SHARE / power if power > 0 else 0.0)
    table = kernel(rows, rows, *shape)
    offset, n = table.mean(0), len(rows)
    table = table - offset - offset[:, None] + offset.mean()
    values, vectors = _leading(table, KERNEL_DIRECTIONS)
    projection = vectors / _root(values)
    projection = projection - projection.mean(0)  # so that (k - offset) @ projection is centred in both arguments
    features = torch.empty_like(vectors).index_copy_(0, order, vectors * values.sqrt()) if n == len(x) else None
    lift = FeatureMap(centre, unit, rows, x.new_tensor(shape), offset, projection, values / n)
    return lift, None if features is None else features.to(given)


ANCHORS = 1000  # rows that relative representations compare with, at most
RELATIVE_WHITENING = 0.5
RELATIVE_DIRECTIONS = 256


def with_relative(
    maps: list[FeatureMap], values: list[Tensor], present: Tensor, seed: int, linear: Sequence[FeatureMap] | None = None
) -> list[FeatureMap]:
    """The maps with relative representations beside their features; `values[m]` are the rows of `present` that have m.

    `linear` are their linear maps, where these are there already.

    Of the N numbers, in which all modalities lie together, the leading RELATIVE_DIRECTIONS principal directions are kept.
    """
    several = (present.sum(1) > 1).nonzero()[:, 0]  # the others would say something about one modality alone
    order = torch.randperm(len(several), generator=torch.Generator().manual_seed(seed)).to(several.device)
    anchors = several[order[:ANCHORS]].sort().values
    number = present.long().cumsum(0) - 1
    relatives, gram = [], values[0].new_zeros((len(anchors), len(anchors)), dtype=torch.float64)
    for m, x in enumerate(values):
        plain = fit_linear(x, maps[m].unit) if linear is None else linear[m]
        projection = plain.projection * plain.scale(RELATIVE_WHITENING)
        rows = prepared(x.double(), maps[m].centre.to(x.device, torch.float64), maps[m].unit)
        there = present[anchors, m]
        own = normalize((rows[number[anchors[there], m]] - plain.offset) @ projection, dim=1)
        table = own.new_zeros((len(anchors), own.shape[1]))
        table[there] = own
        relatives.append(Relative(plain.offset, projection, table))
        near = relatives[-1](rows)
        gram = gram + near.T @ near
    _, directions = _leading(gram, RELATIVE_DIRECTIONS)
    return [
        replace(
            lift,
            offset=torch.cat([lift.offset, lift.offset.new_zeros(len(anchors))]),
            projection=torch.block_diag(lift.projection, directions),
            variance=torch.cat([lift.variance, lift.variance.new_ones(directions.shape[1])]),
            relative=relative,
            beside=directions.shape[1],
        )
        for lift, relative in zip(maps, relatives, strict=True)
    ]


def _centre(x: Tensor) -> Tensor:
    """Column means; of a constant column its value to the bit, so that nothing is left of it but zeros."""
    return torch.where((x == x[0]).all(0), x[0], x.mean(0))


def _nothing(x: Tensor, unit: bool) -> FeatureMap:
    """What is known of a modality that no row has: one feature that is always zero."""
    zero = x.new_zeros(x.shape[1])
    return FeatureMap(zero, unit, x, x.new_zeros(2), zero, zero[:, None], x.new_zeros(1))


def _leading(matrix: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(values (r,), vectors (n, r)) of a symmetric matrix, largest first; at least one, without what is rounding.

    Each vector's sign is fixed by its largest entry, so that equal data give equal features.
    """
    values, vectors = principal_directions((matrix + matrix.T) / 2, most, RANK)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return values[: vectors.shape[1]], (vectors * torch.where(largest < 0, -1.0, 1.0)).contiguous()


def _root(values: Tensor) -> Tensor:
    """sqrt, with 1 for zero."""
    return torch.where(values > 0, values, 1.0).sqrt()
