"""EM for the latent model: M-step and prior, the loop with parameter expansion, its checkpoint, and fits by settings.

The M-step solves for [W mu] jointly (or one after the other, as printed in the paper), then for the noise. Per modality, over
the N_m rows that have it, with M1_i = [m_i, 1] and a prior worth `loading` rows on W and `mean` rows on mu:
    [W mu] = (sum_i z_i M1_i^T) (sum_i M1_i M1_i^T + blockdiag(sum_i V_i + loading I, mean))^-1.
The E-step is in `calmrl.latent.statistics`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from calmrl._support.distributed import gather_objects, world
from calmrl._support.linalg import inverse_of
from calmrl._support.output import replaced_file
from calmrl._support.tensor_files import plain
from calmrl.errors import InputError
from calmrl.latent.model import Expectation, Parameters, entry_posteriors, random_parameters
from calmrl.latent.rows import Pack, Source
from calmrl.latent.statistics import Moments, Statistics, add_moments, add_pack

SAMPLE_ROWS = 20_000  # k-means sees at most about this many posterior means
TINY = torch.finfo(torch.float64).tiny


# ---- prior and M-step


@dataclass(frozen=True)
class Prior:
    """A prior in units of rows: each strength acts like that many rows that say W = centre, mu = 0, noise = scale.

    All zero is maximum likelihood. Data are centred, so mu = 0 is the column mean. `floor` bounds each modality's noise.
    """

    loading: float
    mean: float
    noise: float
    weight: float
    scale: list[Tensor]  # (d_m,) variance that the noise prior points to
    floor: list[Tensor]  # () smallest noise variance
    centre: list[Tensor] | None = None  # (d_m, L) loadings that the prior points to; None is zero

    def log_density(self, params: Parameters) -> float:
        """Log of the prior up to a constant: what EM adds to the log-likelihood to get its objective."""
        total = self.weight * params.log_weight.sum()
        for m, (W, mu, noise, scale) in enumerate(zip(params.W, params.mu, params.noise, self.scale, strict=True)):
            away = W if self.centre is None else W - self.centre[m]
            penalty = self.loading * away.square().sum(2) + self.mean * mu**2 + self.noise * scale
            total = total - 0.5 * (penalty / noise + self.noise * noise.log()).sum()
        return float(total)


def single_prior(rows: float, variance: list[Tensor], floor: list[Tensor]) -> Prior:
    """The prior of one component: as if `rows` more rows were pure noise of the columns' variance (W = 0, noise = variance)."""
    return Prior(loading=rows, mean=0.0, noise=rows, weight=0.0, scale=variance, floor=floor)


def component_prior(base: Parameters, strength: float, floor: list[Tensor]) -> Prior:
    """Each component's W leans on the shared W with `strength` rows, its noise on the shared noise, its mean on the mean."""
    return Prior(
        loading=strength,
        mean=1.0,
        noise=max(1.0, strength),
        weight=1.0,
        scale=[noise[0] for noise in base.noise],
        floor=floor,
        centre=[W[0] for W in base.W],
    )


def smallest_noise(variance: Tensor, mean: Tensor, relative: float) -> Tensor:
    """The smallest noise variance allowed: a share of the variance, and what rounding leaves of values so large."""
    return relative * variance.mean() + 1e-14 * (1 + mean.square().mean())


def maximise(stats: Statistics, old: Parameters, prior: Prior, *, m_step: str, isotropic: bool) -> Parameters:
    """The parameters that maximise the expected complete-data log-likelihood plus the log prior."""
    L = old.latent_dim
    eye = torch.eye(L, dtype=torch.float64, device=stats.n.device)
    W_new, mu_new, noise_new = [], [], []
    for m in range(len(old.names)):
        n, m1, zm, z1, z2 = stats.n[m], stats.m1[m], stats.zm[m], stats.z1[m], stats.z2[m]
        if not bool((stats.count(m) > 0).any()):  # never seen: nothing to learn from
            W_new.append(old.W[m])
            mu_new.append(old.mu[m])
            noise_new.append(old.noise[m])
            continue
        if prior.centre is not None:
            zm = zm + prior.loading * prior.centre[m]
            z2 = z2 + prior.loading * prior.centre[m].square().sum(1)
        m2 = stats.m2[m] + prior.loading * eye
        count = n + prior.mean  # (K,)
        gram = torch.cat(
            [torch.cat([m2, m1[..., None]], dim=2), torch.cat([m1, count[:, None]], dim=1)[:, None]], dim=1
        )  # (K, L + 1, L + 1)
        target = torch.cat([zm, z1[..., None]], dim=2)  # (K, d, L + 1)
        if stats.own:
            rows = stats.count(m)  # (K, d): every column has rows of its own; one that no row has stays at zero
            own = stats.own[m] + (rows + prior.mean == 0)[..., None, None] * torch.eye(L + 1).to(eye)
            single = (target[..., None, :], z2[..., None], old.W[m][..., None, :])
            solved, residual = (part[:, :, 0] for part in _solved(gram[:, None] + own, *single, m_step))
            residual, rows = residual + prior.noise * prior.scale[m], rows + prior.noise
            if isotropic:
                residual, rows = (part.sum(1, keepdim=True).expand_as(part) for part in (residual, rows))
        else:
            solved, residual = _solved(gram, target, z2, old.W[m], m_step, regular=prior.loading > 0)
            residual, rows = residual + prior.noise * prior.scale[m], (n + prior.noise)[:, None]
            if isotropic:
                residual = residual.mean(1, keepdim=True).expand_as(residual)
        W_new.append(solved[..., :L].contiguous())
        mu_new.append(solved[..., L].contiguous())
        noise_new.append((residual / rows.clamp(min=TINY)).clamp(min=prior.floor[m]))
    weight = stats.rows + prior.weight
    return Parameters(old.names, W_new, mu_new, noise_new, (weight / weight.sum()).log())


def _solved(
    gram: Tensor, target: Tensor, z2: Tensor, W: Tensor, m_step: str, regular: bool = False
) -> tuple[Tensor, Tensor]:
    """([W mu] (..., d, L + 1), expected squared residual + penalty (..., d)) of d columns that share a gram matrix.

    The residual follows without the data: solved gram = target, so that one product is enough where a prior keeps gram
    `regular`, far from singular.
    """
    if m_step == "joint":
        solved = _solve(gram, target)
    else:
        m2, m1, count = gram[..., :-1, :-1], gram[..., :-1, -1], gram[..., -1, -1]
        mu = (target[..., -1] - (W @ m1[..., None])[..., 0]) / count[..., None]
        loading = _solve(m2, target[..., :-1] - mu[..., None] * m1[..., None, :])
        solved = torch.cat([loading, mu[..., None]], dim=-1)
    explained = (solved * target).sum(-1)
    residual = z2 - explained
    if m_step != "joint" or not regular:
        residual = residual - explained + ((solved @ gram) * solved).sum(-1)
    return solved, residual


def _solve(gram: Tensor, target: Tensor) -> Tensor:
    """target gram^-1 for a symmetric gram: by Cholesky, or by LU where rounding left it without one."""
    if target.shape[-2] == 1:
        chol, bad = torch.linalg.cholesky_ex(gram)
        solved = None if bool(bad.any()) else torch.cholesky_solve(target.mT, chol).mT
    else:
        found = inverse_of(gram)
        solved = None if found is None else target @ found[0]
    return torch.linalg.solve(gram, target.mT).mT if solved is None else solved


def latent_moments(stats: Statistics) -> tuple[Tensor, Tensor] | None:
    """Mean (K, L) and Cholesky factor (K, L, L) of the covariance that the latents turned out to have; None if degenerate."""
    rows = stats.rows[:, None]
    mean = stats.all1 / rows
    covariance = stats.all2 / rows[..., None] - mean[:, :, None] * mean[:, None, :]
    chol, bad = torch.linalg.cholesky_ex(covariance)
    return None if bool(bad.any()) else (mean, chol)


def expand(params: Parameters, mean: Tensor, chol: Tensor) -> Parameters:
    """Parameter expansion (PX-EM): latents with that mean and covariance, folded into mu and W."""
    return replace(
        params,
        mu=[mu + (W @ mean[..., None])[..., 0] for W, mu in zip(params.W, params.mu, strict=True)],
        W=[W @ chol for W in params.W],
    )


# ---- where the loop stands, on disk


PARTS = ("params", "fallback", "best")


@dataclass(frozen=True)
class EMState:
    """All that the next iteration depends on."""

    params: Parameters  # to continue with
    fallback: Parameters | None  # the plain EM step, where `params` is the accelerated one
    best: Parameters  # of the last recorded objective
    accelerate: bool
    objective: list[float]


class Checkpoint:
    """A file that holds the state of one fit. Its name follows from where the fit starts and from its options, so that
    another fit, or the same one on other rows, never takes it for its own."""

    def __init__(self, folder: Path, start: Parameters, options: dict[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode())
        for name, tensor in start.tensors().items():
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        self.file = folder / f"em-{digest.hexdigest()[:16]}.safetensors"
        self.names = start.names

    def load(self) -> EMState | None:
        """What was saved last; None at the first start."""
        if not self.file.is_file():
            return None
        with safe_open(self.file, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (it is no dict)
            meta = json.loads((file.metadata() or {})["standing"])
        parts = {
            part: Parameters.from_tensors(self.names, tensors, f"{part}.") if f"{part}.log_weight" in tensors else None
            for part in PARTS
        }
        return EMState(**parts, **meta)  # type: ignore[arg-type]

    def save(self, state: EMState) -> None:
        """Replace what was saved last, atomically."""
        tensors: dict[str, Tensor] = {}
        for part in PARTS:
            params: Parameters | None = getattr(state, part)
            if params is not None:
                assert params.rotations is None  # EM sees every model without whitening
                tensors |= params.tensors(f"{part}.")
        meta = json.dumps({"accelerate": state.accelerate, "objective": state.objective})
        with replaced_file(self.file) as draft:
            save_file(plain(tensors), draft, metadata={"standing": meta})


def _checkpoint(source: Source, start: Parameters, prior: Prior, **options: Any) -> Checkpoint | None:
    """Where the state of this fit is saved; None where nothing is."""
    folder = None if source.distributed is None else source.distributed.rows.keep
    if folder is None:
        return None
    strengths = {name: getattr(prior, name) for name in ("loading", "mean", "noise", "weight")}
    return Checkpoint(folder, start, {"rows": source.rows, **strengths, **options})


# ---- the loop


@dataclass
class Fit:
    """Where EM ended: the parameters and the objective per row before each M-step."""

    params: Parameters
    objective: list[float] = field(default_factory=list)
    converged: bool = False
    last: Statistics | None = None  # of the last E-step
    moments: tuple[Tensor, Tensor] | None = None  # of the latents, where `params` are expanded by them after it

    @property
    def statistics(self) -> Statistics | None:
        """Of the last E-step, in the latents of `params`: made when asked for, since that costs half an iteration."""
        return self.last if self.last is None or self.moments is None else self.last.rebased(*self.moments)


def expected_statistics(source: Source, params: Parameters) -> Statistics:
    """The E-step over all rows of all processes."""
    if isinstance(source, Moments):
        return source.expected(params)
    parts = source.each(_block_statistics, params, source.dtype)
    stats: Statistics = next(parts)  # a source has rows
    for part in parts:
        stats.combine(part, keep=1.0, add=1.0)
    params.derived.clear()  # what all blocks used; a search remembers the parameters of many steps
    if source.shared:
        if source.torn:
            stats.with_own()  # also where no row of this process has a hole
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
    checkpoint = _checkpoint(source, params, prior, m_step=m_step, isotropic=isotropic, accelerate=accelerate, tol=tol)
    state = checkpoint.load() if checkpoint is not None else None
    if state is not None:
        params, plain, accelerate = state.params, state.fallback, state.accelerate
        fit = Fit(state.best, state.objective)
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
        fit.params, fit.last = params, stats
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
            fit.params, fit.moments = params, moments
            break
        if checkpoint is not None:
            checkpoint.save(EMState(params, plain, fit.params, accelerate, fit.objective))
    if fit.last is None:  # it resumed from a checkpoint, and ended with the parameters from there
        fit.last = expected_statistics(source, fit.params)
    return fit


# ---- the start of a mixture


@torch.no_grad()
def split(source: Source, base: Parameters, n_components: int, seed: int) -> Parameters:
    """K copies of the base model, centred on k-means clusters of its posterior means.

    Component c gets mu_c = mu + W beta_c for cluster centre beta_c: every modality moves along the shared latents, so
    rows need not have any particular modality to take part.
    """
    means = _sample_means(source, base)
    # k-means depends on the order of rows, but the result must not depend on which process holds which rows
    means = means[np.lexsort(means.T)]
    if len(means) < n_components:
        raise InputError(f"n_components={n_components} needs at least as many rows; got {len(means)}")
    from sklearn.cluster import KMeans  # a third of a second, which a search should not cost

    clusters = KMeans(n_components, n_init=1, random_state=seed).fit(means)
    share = np.bincount(clusters.labels_, minlength=n_components) / len(means)
    device = base.log_weight.device
    centres = torch.as_tensor(clusters.cluster_centers_, dtype=torch.float64, device=device)
    return Parameters(
        base.names,
        W=[W.repeat(n_components, 1, 1) for W in base.W],
        mu=[mu + centres @ W[0].T for mu, W in zip(base.mu, base.W, strict=True)],
        noise=[noise.repeat(n_components, 1) for noise in base.noise],
        log_weight=torch.as_tensor(share, dtype=torch.float64, device=device).clamp(min=1e-12).log(),
    )


def _sample_means(source: Source, base: Parameters) -> np.ndarray:
    """Posterior means of an evenly spaced sample of the rows of all processes, the same array in every process."""
    size, _ = world()
    step = max(1, source.rows // SAMPLE_ROWS)
    mine = torch.cat(list(source.each(_every_step, base, source.dtype, step))).cpu().numpy()
    if size == 1 or not source.shared:
        return mine
    return np.concatenate(gather_objects(mine))


@torch.no_grad()
def _every_step(packs: Iterable[Pack], base: Parameters, dtype: torch.dtype, step: int) -> Tensor:
    """Posterior means of every `step`-th row of each pattern of a pack."""
    expect = Expectation.of(base, dtype)
    parts = []
    for packed in packs:
        parts += [rows[::step] for rows in expect.means(packed)[1].double().split(packed.sizes)]
        parts += [post.mean[::step, 0] for post in entry_posteriors(base, packed.torn)]
    return torch.cat(parts)


# ---- fits by settings


@dataclass(frozen=True)
class Settings:
    """Everything that can be chosen. `None` iterations means: until convergence."""

    latent_dim: int
    n_components: int = 1
    noise: str = "isotropic"
    prior: float = 0.0
    component_prior: float = 0.0
    base_iterations: int | None = None
    iterations: int | None = None
    whitening: float = 0.0


def noise_floor(source: Source) -> list[Tensor]:
    """The smallest noise variance allowed: what the working dtype can still tell from zero."""
    relative = 1e-5 if source.dtype == torch.float32 else 1e-8
    return [smallest_noise(v, c, relative) for v, c in zip(source.variance, source.mean, strict=True)]


def start_at_random(source: Source, latent_dim: int, seed: int) -> Parameters:
    """Random loadings around the column means, in the source's centred frame; none for a modality that no row has."""
    floor = noise_floor(source)
    variance = [torch.maximum(v, f) for v, f in zip(source.variance, floor, strict=True)]
    zero = [torch.zeros_like(mean) for mean in source.mean]
    start = random_parameters(source.names, zero, variance, latent_dim, torch.Generator().manual_seed(seed))
    for W, count in zip(start.W, source.count, strict=True):
        if count == 0:
            W.zero_()
    return start


def fit_settings(
    source: Source,
    settings: Settings,
    *,
    seed: int,
    max_iter: int,
    tol: float,
    m_step: str = "joint",
    accelerate: bool = True,
    base: Parameters | None = None,
    after_step: Callable[[int, Parameters, float], bool] | None = None,
) -> Fit:
    """EM with the given settings; parameters are in the source's centred frame. `base` spares a mixture its first part."""
    floor = noise_floor(source)

    def run(start: Parameters, prior: Prior, limit: int | None, px: bool, watch: bool) -> Fit:
        return run_em(
            source,
            start,
            prior,
            m_step=m_step,
            isotropic=settings.noise == "isotropic",
            accelerate=px,
            max_iter=limit or max_iter,
            tol=tol,
            after_step=after_step if watch else None,
        )

    single = settings.n_components == 1
    if base is None:
        start = start_at_random(source, settings.latent_dim, seed)
        prior = single_prior(settings.prior, source.variance, floor)
        fit = run(start, prior, settings.iterations if single else settings.base_iterations, accelerate, single)
        if single:
            return fit
        base = fit.params
    prior = component_prior(base, settings.component_prior, floor)
    return run(split(source, base, settings.n_components, seed), prior, settings.iterations, False, True)
