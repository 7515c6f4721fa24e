"""The model: K linear-Gaussian components, z^m = W_c^m beta + mu_c^m + eps, beta ~ N(0, I), and the posterior of beta.

`Parameters` are what was learned. `Expectation` is what follows from them for rows of any pattern of observed modalities: with
V = (I + sum over the observed m of W^mT Psi_m^-1 W^m)^-1, beta has mean V sum_m W^mT Psi_m^-1 (z^m - mu^m) and covariance V.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calmrl.latent.rows import Pack

if TYPE_CHECKING:
    from calmrl.latent.whitening import Rotation


@dataclass(frozen=True)
class Parameters:
    """One entry per modality in each list, in the order of `names`; K components, L latents, float64."""

    names: tuple[str, ...]
    W: list[Tensor]  # (K, d_m, L)
    mu: list[Tensor]  # (K, d_m)
    noise: list[Tensor]  # (K, d_m) variances of eps
    log_weight: Tensor  # (K,) log of the mixing weights
    rotations: list[Rotation] | None = (
        None  # of a whitened model, whose noise is correlated; `noise` is then its diagonal
    )
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # by `Expectation.of`

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another process: the parameters, without what follows from them."""
        own = ("names", "W", "mu", "noise", "log_weight", "rotations")
        return {**{name: self.__dict__[name] for name in own}, "derived": {}}

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

    def factor(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        """V (P, K, L, L) and log|V^-1| (P, K) for each pattern.

        A few patterns on the CPU are kept, each factorised on its own, so that what else is asked for does not
        change a bit of the result.
        """
        return self._stacked(patterns) if self._keeps(patterns) else self._factor(patterns)

    def _stacked(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        factors = self._kept(patterns)
        return torch.stack([V for V, _, _ in factors]), torch.stack([logdet for _, logdet, _ in factors])

    def _factor(self, patterns: Tensor) -> tuple[Tensor, Tensor]:
        information = torch.stack(self.information)  # (k, K, L, L)
        present = patterns.to(information.dtype)  # (P, k)
        return inverse(self.eye + torch.tensordot(present, information, dims=1))

    def _keeps(self, patterns: Tensor) -> bool:
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
        found = [(V[:, 0].to(self.dtype), logdet[:, 0]) for _, V, logdet in self.groups(patterns)]
        if not found:
            return self.eye.new_zeros((0, *self.eye.shape), dtype=self.dtype), self.eye.new_zeros(0)
        return torch.cat([V for V, _ in found]), torch.cat([logdet for _, logdet in found])

    def factored(self, patterns: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(p, V, log|V^-1|) for every pattern."""
        for group, V, logdet in self.groups(patterns):
            for j in range(len(V)):
                yield group.start + j, V[j], logdet[j]

    def groups(self, patterns: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(which patterns, their V, their log|V^-1|): all of them, factorised in groups of bounded size."""
        factor = self._stacked if self._keeps(patterns) else self._factor
        for start in range(0, len(patterns), self._group):
            V, logdet = factor(patterns[start : start + self._group])
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
    chol = torch.linalg.cholesky(precision)
    return torch.cholesky_inverse(chol), 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Sum of a non-empty iterable of tensors."""
    total = None
    for tensor in tensors:
        total = tensor if total is None else total + tensor
    assert total is not None, "a row without any modality reached the model"
    return total
