"""The model: K linear-Gaussian components, z^m = W_c^m beta + mu_c^m + eps, beta ~ N(0, I), and the posterior of beta.

`Parameters` are what was learned. `Expectation` is what follows from them for rows of any pattern of observed modalities: with
V = (I + sum over the observed m of W^mT Psi_m^-1 W^m)^-1, beta has mean V sum_m W^mT Psi_m^-1 (z^m - mu^m) and covariance V.

Of rows with holes inside a modality every entry speaks for itself, since their noise is diagonal. With o_i the observed
entries of row i and W_j a row of the loadings,
    V_i = (I + sum over j in o_i of W_j W_j^T / psi_j)^-1,    m_i = V_i sum over j in o_i of W_j (z_ij - mu_j) / psi_j.
All V_i^-1 of a chunk are one product of the observed entries (P, D) with the table of W_j W_j^T / psi_j; rows that have the
same entries share one factorisation. Symmetric matrices are kept as their upper triangle, T = L (L + 1) / 2 numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calmrl._support.linalg import inverse_of
from calmrl.errors import InputError
from calmrl.latent.rows import Pack, Torn

if TYPE_CHECKING:
    from calmrl.latent.whitening import Rotation

PER_MODALITY = ("W", "mu", "noise")


@dataclass(frozen=True)
class Parameters:
    """One entry per modality in each list, in the order of `names`; K components, L latents, float64."""

    names: tuple[str, ...]
    W: list[Tensor]  # (K, d_m, L)
    mu: list[Tensor]  # (K, d_m)
    noise: list[Tensor]  # (K, d_m) variances of eps
    log_weight: Tensor  # (K,) log of the mixing weights
    rotations: list[Rotation] | None = None  # of a whitened model, whose noise is correlated: `noise` is its diagonal
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # by `Expectation.of`

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another process: the parameters, without what follows from them."""
        return {**vars(self), "derived": {}}

    @property
    def n_components(self) -> int:
        return self.W[0].shape[0]

    @property
    def latent_dim(self) -> int:
        return self.W[0].shape[2]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(w.shape[1] for w in self.W)

    @cached_property
    def weighted(self) -> list[Tensor]:
        """Psi_m^-1 W^m, (K, d_m, L)."""
        if self.rotations is not None:
            return [rotation.weighted(W) for W, rotation in zip(self.W, self.rotations, strict=True)]
        return [W / noise[..., None] for W, noise in zip(self.W, self.noise, strict=True)]

    @cached_property
    def information(self) -> list[Tensor]:
        """W^mT Psi_m^-1 W^m, (K, L, L): what modality m adds to the precision of the latents."""
        return [W.mT @ weighted for W, weighted in zip(self.W, self.weighted, strict=True)]

    def moved(self, shift: Sequence[Tensor]) -> Parameters:
        """The same model after adding `shift` to every z^m."""
        rotations = None if self.rotations is None else [t.moved(s) for t, s in zip(self.rotations, shift, strict=True)]
        return replace(self, mu=[mu + s for mu, s in zip(self.mu, shift, strict=True)], rotations=rotations)

    def to(self, device: torch.device | str) -> Parameters:
        return self if self.W[0].device == torch.device(device) else self._each(lambda t: t.to(device))

    def detached(self) -> Parameters:
        """Plain values, free of any graph."""
        return self._each(lambda t: t.detach().clone())

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """By the names that they have in files; without those of rotations."""
        named = {f"{prefix}log_weight": self.log_weight}
        for part in PER_MODALITY:
            pairs = zip(self.names, getattr(self, part), strict=True)
            named |= {f"{prefix}{part}.{name}": tensor for name, tensor in pairs}
        return named

    @staticmethod
    def from_tensors(
        names: Sequence[str],
        tensors: Mapping[str, Tensor],
        prefix: str = "",
        rotations: list[Rotation] | None = None,
    ) -> Parameters:
        """The inverse of `tensors`."""
        W, mu, noise = ([tensors[f"{prefix}{part}.{name}"] for name in names] for part in PER_MODALITY)
        return Parameters(tuple(names), W, mu, noise, tensors[f"{prefix}log_weight"], rotations)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Parameters:
        W, mu, noise = ([change(t) for t in part] for part in (self.W, self.mu, self.noise))
        rotations = None if self.rotations is None else [rotation.each(change) for rotation in self.rotations]
        return replace(self, W=W, mu=mu, noise=noise, log_weight=change(self.log_weight), rotations=rotations)


def random_parameters(
    names: Sequence[str],
    mean: Sequence[Tensor],
    variance: Sequence[Tensor],
    latent_dim: int,
    generator: torch.Generator,
) -> Parameters:
    """One component whose loadings are random and explain half of each column's variance.

    Drawn on the CPU from `generator`, so that every process and every device starts from the same point.
    """
    loadings, noise = [], []
    for var in variance:
        draw = torch.randn(len(var), latent_dim, generator=generator, dtype=torch.float64).to(var.device)
        loadings.append((draw * (var[:, None] / (2 * latent_dim)).sqrt())[None])
        noise.append((var / 2).mean().expand(1, len(var)).clone())
    return Parameters(
        names=tuple(names),
        W=loadings,
        mu=[m[None].clone() for m in mean],
        noise=noise,
        log_weight=torch.zeros(1, dtype=torch.float64, device=mean[0].device),
    )


KEPT = 64  # patterns whose factors stay with the parameters
FACTOR_BYTES = 1 << 23  # patterns are factorised in groups of about this size, so that many patterns cost no memory


@dataclass(frozen=True)
class Posterior:
    """Posterior of rows that share one pattern."""

    mean: Tensor  # (n, K, L)
    covariance: Tensor  # (K, L, L); (n, K, L, L) of rows with holes
    log_joint: Tensor  # (n, K) log of weight_c * p(z_i | c)
    quadratic: Tensor  # (n, K) m_i^T V^-1 m_i


class Expectation:
    """Everything the E-step needs of the parameters, in the dtype of the data; `Expectation.of` computes it once."""

    @staticmethod
    def of(params: Parameters, dtype: torch.dtype) -> Expectation:
        """The one that these parameters keep."""
        if dtype not in params.derived:
            params.derived[dtype] = Expectation(params, dtype)
        kept: Expectation = params.derived[dtype]
        return kept

    def __init__(self, params: Parameters, dtype: torch.dtype) -> None:
        K, L = params.n_components, params.latent_dim
        self.params, self.dtype = params, dtype
        self.information = params.information  # (K, L, L) each
        self.scaled = [w.permute(1, 0, 2).reshape(-1, K * L).to(dtype) for w in params.weighted]  # (d, K L)
        self.constant = [
            (mu**2 / noise + noise.log() + math.log(2 * math.pi)).sum(1)
            for mu, noise in zip(params.mu, params.noise, strict=True)
        ]  # (K,)
        if params.rotations is not None:  # `_distance` is the whole distance there
            self.constant = [rotation.log_determinant() for rotation in params.rotations]
        self.loadings = [W.to(dtype) for W in params.W]  # (K, d, L)
        self.centre = [mu.to(dtype) for mu in params.mu]  # (K, d)
        self.factors: dict[tuple[bool, ...], tuple[Tensor, Tensor, Tensor]] = {}
        self.eye = torch.eye(L, dtype=torch.float64, device=params.W[0].device)

    def _keeps(self, patterns: Tensor) -> bool:
        """Whether the factors are kept, each made on its own, so that what else is asked for does not change a bit of them."""
        return 0 < len(patterns) <= KEPT and patterns.device.type == "cpu" and not self.information[0].requires_grad

    def _kept(self, patterns: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """V, log|V^-1|, and V in the dtype of the data, of each pattern."""
        keys = [tuple(pattern) for pattern in patterns.tolist()]
        new = [key for key in keys if key not in self.factors]
        if len(self.factors) + len(new) > KEPT:
            self.factors.clear()
            new = list(dict.fromkeys(keys))
        for start in range(0, len(new), self._group):
            group = new[start : start + self._group]
            V, logdet = inverse(self._precisions(group))
            self.factors.update(zip(group, zip(V, logdet, V.to(self.dtype), strict=True), strict=True))
        return [self.factors[key] for key in keys]

    @property
    def _group(self) -> int:
        """Patterns that are factorised at a time."""
        return max(1, FACTOR_BYTES // (8 * self.params.n_components * self.params.latent_dim**2))

    def _precisions(self, patterns: list[tuple[bool, ...]]) -> Tensor:
        """V^-1 of each pattern, (P, K, L, L), added up in place: with hundreds of latents copies cost as much as inverses."""
        total = self.eye.expand(len(patterns), *self.information[0].shape).clone()
        for one, pattern in zip(total, patterns, strict=True):
            for part, has in zip(self.information, pattern, strict=True):
                if has:
                    one += part
        return total

    def maps(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        """V (P, L, L) in the dtype of the data, and log|V^-1| (P,) of each pattern, for a single component."""
        if self._keeps(patterns):
            factors = self._kept(patterns)
            return torch.stack([V[0] for _, _, V in factors]), torch.cat([logdet for _, logdet, _ in factors])
        V, logdet = [self.eye.new_zeros((0, *self.eye.shape), dtype=self.dtype)], [self.eye.new_zeros(0)]
        for _, found, of_group in self.groups(patterns):
            V.append(found[:, 0].to(self.dtype))
            logdet.append(of_group[:, 0])
        return torch.cat(V), torch.cat(logdet)

    def factored(self, patterns: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(p, V, log|V^-1|) for every pattern."""
        for group, V, logdet in self.groups(patterns):
            for j in range(len(V)):
                yield group.start + j, V[j], logdet[j]

    def groups(self, patterns: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(which patterns, their V (P, K, L, L), their log|V^-1| (P, K)): all of them, in groups of bounded size."""
        keeps = self._keeps(patterns)
        for start in range(0, len(patterns), self._group):
            group = patterns[start : start + self._group]
            if keeps:
                kept = self._kept(group)
                V, logdet = torch.stack([V for V, _, _ in kept]), torch.stack([logdet for _, logdet, _ in kept])
            else:
                information = torch.stack(self.information)  # (k, K, L, L)
                V, logdet = inverse(self.eye + torch.tensordot(group.to(information.dtype), information, dims=1))
            yield slice(start, start + len(V)), V, logdet

    def rows(self, held: list[tuple[int, Tensor]], V: Tensor, logdet: Tensor) -> Posterior:
        """Posterior of rows that share one pattern; `held` lists (modality, its rows)."""
        K, L = self.params.n_components, self.params.latent_dim
        flat = sum_of(z @ self.scaled[m] for m, z in held)  # (n, K L)
        b = flat.reshape(-1, K, L) - sum_of(self.offset[m] for m, _ in held)
        mean = (b.transpose(0, 1) @ V.to(self.dtype)).transpose(0, 1)  # (n, K, L)
        quadratic = (b * mean).sum(-1)
        distance = sum_of(self._distance(m, z) for m, z in held)
        constant = sum_of(self.constant[m] for m, _ in held) + logdet
        log_joint = self.params.log_weight - 0.5 * (constant + distance - quadratic)
        if self.dtype != torch.float64 and not bool(torch.isfinite(log_joint).all()):
            return self._rows_in_double(held, V, logdet)
        return Posterior(mean, V, log_joint, quadratic)

    def _rows_in_double(self, held: list[tuple[int, Tensor]], V: Tensor, logdet: Tensor) -> Posterior:
        """As `rows`, for values so far from the model that their squared distance overflows single precision."""
        wide = Expectation(self.params, torch.float64).rows([(m, z.double()) for m, z in held], V, logdet)
        return Posterior(wide.mean.to(self.dtype), V, wide.log_joint, wide.quadratic)

    def _distance(self, m: int, z: Tensor) -> Tensor:
        """|z - mu|^2 in the metric of Psi^-1 per row and component, without the part that is in `constant`, (n, K)."""
        if self.params.rotations is not None:
            return self.params.rotations[m].distance(z, self.params.mu[m])
        return (z * z) @ self.precision[m] - 2 * (z @ self.mean_scaled[m])

    @cached_property
    def offset(self) -> list[Tensor]:
        """W^mT Psi_m^-1 mu^m, (K, L)."""
        pairs = zip(self.params.weighted, self.params.mu, strict=True)
        return [(mu[:, None] @ weighted)[:, 0].to(self.dtype) for weighted, mu in pairs]

    @cached_property
    def precision(self) -> list[Tensor]:
        """1 / noise, (d, K)."""
        return [(1 / noise).T.to(self.dtype) for noise in self.params.noise]

    @cached_property
    def mean_scaled(self) -> list[Tensor]:
        """mu / noise, (d, K)."""
        pairs = zip(self.params.mu, self.params.noise, strict=True)
        return [(mu / noise).T.to(self.dtype) for mu, noise in pairs]

    @cached_property
    def side_by_side(self) -> Tensor:
        """Psi_m^-1 W^m of all modalities one below the other, (D, L), for a single component."""
        return torch.cat(self.scaled)

    @cached_property
    def middle(self) -> Tensor:
        """mu of all modalities, (D,), for a single component."""
        return torch.cat(self.centre, dim=1)[0]

    def evidence(self, packed: Pack) -> Tensor:
        """b = sum_m W^mT Psi_m^-1 (z^m - mu^m), (N, L), of all whole rows of a pack, for a single component."""
        b = packed.z[0].new_zeros((len(packed.order), self.params.latent_dim))
        for m, z in enumerate(packed.z):
            b = b.index_add(0, packed.places[m], z @ self.scaled[m] - self.offset[m][0])
        return b

    def means(self, packed: Pack) -> tuple[Tensor, Tensor]:
        """(b, V b), (N, L) each: `evidence` and the posterior means of all whole rows of a pack, in its order."""
        b = self.evidence(packed)
        keeps = self._keeps(packed.patterns)
        maps = [V[0] for _, _, V in self._kept(packed.patterns)] if keeps else self.maps(packed.patterns)[0]
        means = [rows @ V for rows, V in zip(b.split(packed.sizes), maps, strict=True)]
        return b, torch.cat(means) if means else b


def inverse(precision: Tensor) -> tuple[Tensor, Tensor]:
    """(V, log|V^-1|) of positive definite V^-1."""
    found = inverse_of(precision)
    if found is None:
        torch.linalg.cholesky(precision)  # says what is wrong
        raise ArithmeticError("the precision of the latents has no Cholesky factor")
    return found


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Sum of a non-empty iterable of tensors."""
    total = None
    for tensor in tensors:
        total = tensor if total is None else total + tensor
    assert total is not None, "a row without any modality reached the model"
    return total


# ---- rows with holes inside a modality

CHUNK_BYTES = 1 << 25  # rows are taken in chunks whose factors have about this size


@dataclass(frozen=True)
class EntryPosterior(Posterior):
    """Posterior of rows that differ in what they have: the covariance is (n, K, L, L)."""

    rows: Tensor  # (n,) original index of each row
    present: Tensor  # (n, k) bool
    x: Tensor  # (n, D) values, zero where not observed
    patterns: Tensor  # (P, D) bool: observed entries
    slots: Tensor  # (n,) the pattern of each row
    distance: Tensor  # (n, K) sum over the observed entries of (z_j - mu_j)^2 / psi_j


@dataclass(frozen=True)
class EntryTable:
    """What single entries say about the latents; columns of all modalities side by side."""

    mu: Tensor  # (K, D)
    precision: Tensor  # (K, D) 1 / psi
    weighted: Tensor  # (K, D, L) W / psi
    outer: Tensor  # (K, D, T) upper triangle of W_j W_j^T / psi_j
    constant: Tensor  # (K, D) log psi + log 2 pi

    @staticmethod
    def of(params: Parameters) -> EntryTable:
        """The one that these parameters keep."""
        if params.rotations is not None:
            raise InputError(
                "rows with holes inside a modality need a model of the features as they are, but this one is whitened; fit "
                "with whitening=0, or on rows with holes"
            )
        if "entries" not in params.derived:
            W, mu, noise = (torch.cat(getattr(params, part), dim=1) for part in PER_MODALITY)
            weighted = W / noise[..., None]
            i, j = triangle(params.latent_dim, W.device)
            constant = noise.log() + math.log(2 * math.pi)
            params.derived["entries"] = EntryTable(mu, 1 / noise, weighted, W[..., i] * weighted[..., j], constant)
        kept: EntryTable = params.derived["entries"]
        return kept


def triangle(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column numbers of the upper triangle of a matrix."""
    i, j = torch.triu_indices(size, size, device=device)
    return i, j


def symmetric(flat: Tensor, size: int) -> Tensor:
    """(..., size, size) from upper triangles (..., T)."""
    i, j = triangle(size, flat.device)
    at = torch.empty((size, size), dtype=torch.long, device=flat.device)
    at[i, j] = at[j, i] = torch.arange(len(i), device=flat.device)
    return flat[..., at]


def entry_posteriors(params: Parameters, torn: Torn | None) -> Iterator[EntryPosterior]:
    """The posterior of rows with holes, in chunks of bounded size; differentiable in the values."""
    if torn is None:
        return
    table = EntryTable.of(params)
    K, L, D = params.n_components, params.latent_dim, torn.x.shape[1]
    step = max(1, CHUNK_BYTES // (8 * K * (3 * L * L + D)))
    for start in range(0, len(torn.x), step):
        part = slice(start, start + step)
        first, last = int(torn.slots[part][0]), int(torn.slots[part][-1])
        patterns, slots = torn.patterns[first : last + 1], torn.slots[part] - first
        held = patterns.double()  # (P, D)
        precision = symmetric((held @ table.outer).transpose(0, 1), L)  # (P, K, L, L)
        V, logdet = inverse(precision + torch.eye(L, dtype=held.dtype, device=held.device))
        x = torn.x[part]
        gap = torch.where(patterns[slots][:, None], x[:, None] - table.mu, 0.0)  # (n, K, D)
        b = (gap.transpose(0, 1) @ table.weighted).transpose(0, 1)  # (n, K, L)
        V = V[slots]
        mean = (V * b[..., None, :]).sum(-1)
        quadratic = (b * mean).sum(-1)
        distance = (gap.square() * table.precision).sum(-1)
        constant = (held @ table.constant.T + logdet)[slots]
        log_joint = params.log_weight - 0.5 * (constant + distance - quadratic)
        yield EntryPosterior(
            mean, V, log_joint, quadratic, torn.order[part], torn.present[part], x, patterns, slots, distance
        )
