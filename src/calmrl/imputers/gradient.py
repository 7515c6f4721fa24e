"""The latent model as an `nn.Module`: fitted by gradient descent on the exact Gaussian negative log-likelihood."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from calmrl._support.distributed import all_sum, world
from calmrl.arrays import Array, Views, check
from calmrl.errors import InputError
from calmrl.latent.model import Expectation, Parameters, sum_of
from calmrl.latent.predict import complete, packs_of
from calmrl.latent.rows import Pack


class GaussianLatent(nn.Module):
    """Linear-Gaussian latent model with trainable parameters.

    `forward(z, present)` is the mean negative log-likelihood of the observed modalities per row, exact (Woodbury), and
    differentiable in the parameters and in `z`. At its optimum it agrees with EM. Noise is `floor` + exp(log_noise).

    Start it from a fitted `GaussianImputer` (`GaussianLatent(imputer.parameters_)`), or at random inside
    `GaussianImputer(solver="gradient")`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> shared = rng.normal(size=(80, 2))
    >>> z = {"image": shared @ rng.normal(size=(2, 4)), "text": shared @ rng.normal(size=(2, 3))}
    >>> z["text"][:20] = np.nan
    >>> import torch
    >>> from calmrl import GaussianImputer
    >>> latent = GaussianLatent(GaussianImputer(2).fit(z).parameters_)
    >>> rows = {name: torch.from_numpy(values[20:]) for name, values in z.items()}
    >>> latent(rows, torch.ones(60, 2, dtype=torch.bool)).backward()
    """

    def __init__(self, params: Parameters, isotropic: bool = True, floor: list[Tensor] | None = None) -> None:
        super().__init__()
        if params.rotations is not None:
            raise InputError("GaussianLatent trains a model of the features as they are; fit with whitening=0")
        self.names = params.names
        self.floor = [mu.new_tensor(0.0) for mu in params.mu] if floor is None else floor
        self.W = nn.ParameterList([W.clone() for W in params.W])
        self.mu = nn.ParameterList([mu.clone() for mu in params.mu])
        noise = [n.mean(1, keepdim=True) if isotropic else n for n in params.noise]
        self.log_noise = nn.ParameterList(
            [torch.maximum(n - f, 1e-3 * n).log() for n, f in zip(noise, self.floor, strict=True)]
        )
        self.logits = nn.Parameter(params.log_weight.clone())

    def as_parameters(self) -> Parameters:
        """The current values in the form the rest of the package uses; gradients flow through."""
        return Parameters(
            names=self.names,
            W=list(self.W),
            mu=list(self.mu),
            noise=[(f + n.exp()).expand_as(mu) for n, mu, f in zip(self.log_noise, self.mu, self.floor, strict=True)],
            log_weight=torch.log_softmax(self.logits, dim=0),
        )

    def _views(self, z: Mapping[str, Array], present: Array | None) -> Views:
        widths = [mu.shape[1] for mu in self.mu]
        return check(z, present, names=self.names, widths=widths, values=present is None)

    def forward(self, z: Mapping[str, Array], present: Array | None = None) -> Tensor:
        """Mean negative log-likelihood per row; with several processes, its mean over them is that of all rows."""
        views = self._views(z, present)
        params = self.as_parameters()
        expect = Expectation(params, torch.float64)
        parts = [log_likelihood_of(expect, packed) for _, _, packed in packs_of(views, params)]
        (rows,) = all_sum([self.logits.new_tensor(float(len(views)))])
        value = sum_of(parts) if parts else sum_of(w.sum() * 0 for w in self.W)
        return -value * world()[0] / rows.clamp(min=1)

    def transform(self, z: Mapping[str, Array], present: Array | None = None) -> dict[str, Any]:
        """`z` with the missing modalities filled in; observed entries as they were."""
        return complete(self.as_parameters(), self._views(z, present))


def log_likelihood_of(expect: Expectation, packed: Pack) -> Tensor:
    """Sum of log p(z_i) over the rows of a pack, differentiable in everything."""
    total = expect.eye.new_zeros(())
    for p, V, logdet in expect.factored(packed.patterns):
        total = total + torch.logsumexp(expect.rows(packed.slices(p), V, logdet).log_joint, dim=1).sum()
    return total


def fit_by_gradient(
    packs: list[Pack], start: Parameters, floor: list[Tensor], isotropic: bool, max_iter: int, tol: float
) -> tuple[Parameters, list[float]]:
    """L-BFGS on the negative log-likelihood of all packs; (parameters, mean log-likelihood per iteration)."""
    model = GaussianLatent(start, isotropic, floor)
    packs = [replace(packed, z=[rows.double() for rows in packed.z]) for packed in packs]
    rows = sum(len(packed) for packed in packs)
    history: list[float] = []
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=20, history_size=20, line_search_fn="strong_wolfe", tolerance_change=0.0
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        expect = Expectation(model.as_parameters(), torch.float64)
        value = -sum_of(log_likelihood_of(expect, packed) for packed in packs) / rows
        value.backward()
        return value

    for _ in range(max_iter):
        history.append(-float(optimiser.step(loss).detach()))
        if len(history) > 1 and history[-1] - history[-2] <= tol * max(1.0, abs(history[-1])):
            break
    return model.as_parameters().detached(), history
