"""Calibrated alignment: impute missing modalities with a latent model, then apply any alignment objective."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from calmrl._support.tensor_files import packed, unpacked
from calmrl.arrays import Views, check, full_precision
from calmrl.errors import InputError
from calmrl.imputers.gaussian import GaussianImputer
from calmrl.imputers.gradient import GaussianLatent
from calmrl.losses.base import Stacked
from calmrl.losses.matching import InstanceMatching
from calmrl.losses.registry import LOSSES
from calmrl.protocols import Imputer, StatefulImputer, StreamingImputer

EACH = 20  # batches of a new latent model after each of which its parameters are solved for
UPDATES = ("stepwise", "frozen", "gradient")


class CalibratedAlignment(nn.Module):
    """weight * objective(observed + imputed) + (1 - weight) * objective(observed) [+ matching_weight * matching(observed)].

    `value = align(z, present)` takes a dict of (N, d) tensors and a bool mask like every loss. While training it first
    updates the latent model on the batch, then imputes what is missing, then applies the objective to complete rows.
    In evaluation mode nothing is updated. The state of the latent model is part of `state_dict` and loads into a fresh
    object. After each call `last` holds the detached scalars of the parts.

    Parameters
    ----------
    objective : str or nn.Module
        A name of `calmrl.losses.LOSSES`, or a loss.
    imputer : Imputer or GaussianLatent
        The latent model.
    update : {"stepwise", "frozen", "gradient"}
        "stepwise": running-statistics EM on each training batch; "frozen": the imputer stays as it was fitted;
        "gradient": the imputer is a module whose call gives the mean negative log-likelihood per row, which is added
        to the loss on detached representations, so that the optimiser fits it.
    impute_from : {"current", "start"}
        "current" imputes from the representations of the batch, as printed. "start" imputes from those at the start of
        the training stage, passed as `align(z, present, start=...)`: an imputed vector is then a fixed point and does
        not move with the encoders, and the latent model learns from those representations too.
    impute_grad : bool
        Whether gradients reach the encoders through the imputed vectors as well.
    renormalize : bool
        Whether imputed vectors are scaled to unit length, like observed ones.
    certainty : bool
        Scale imputed vectors by sqrt(|mean|^2 / (|mean|^2 + sum of predictive variances)): with `renormalize` an
        imputed vector is then mean / sqrt(E |z|^2), and its inner products are expected ones. A modality that the
        model cannot predict fades out of the Gram matrix. Not part of the published method.
    weight : float
        How much imputed rows count: 1 is the published method; with 0 the latent model imputes only at test time. An
        imputed vector is a function of the observed ones and adds no information.
    m_every : int
        "stepwise" solves for the parameters of the latent model after every so many batches (after each of the first
        20); all batches enter the running statistics. 1 is the published order.
    momentum : float, optional
        How much of the running statistics each batch keeps, s <- momentum s + (1 - momentum) s_batch; by default the
        imputer's own schedule.
    matching : InstanceMatching, optional
        Applied to the observed modalities only, with weight `matching_weight`.

    Examples
    --------
    >>> from calmrl import GaussianImputer
    >>> z = {name: nn.functional.normalize(torch.randn(32, 8), dim=1).requires_grad_() for name in ("image", "text")}
    >>> present = torch.ones(32, 2, dtype=torch.bool)
    >>> present[:10, 0] = False
    >>> align = CalibratedAlignment("pmrl", imputer=GaussianImputer(latent_dim=4))
    >>> align(z, present).backward()
    """

    def __init__(
        self,
        objective: str | nn.Module = "pmrl",
        *,
        imputer: Imputer | GaussianLatent,
        update: str = "stepwise",
        impute_from: str = "current",
        impute_grad: bool = True,
        renormalize: bool = True,
        certainty: bool = False,
        weight: float = 1.0,
        m_every: int = 16,
        momentum: float | None = None,
        matching: InstanceMatching | None = None,
        matching_weight: float = 0.1,
    ) -> None:
        super().__init__()
        if update not in UPDATES:
            raise InputError(f"update must be one of {', '.join(UPDATES)}; got {update!r}")
        if impute_from not in ("current", "start"):
            raise InputError(f"impute_from must be current or start; got {impute_from!r}")
        if update == "gradient" and not isinstance(imputer, nn.Module):
            raise InputError(
                f'update="gradient" needs a module whose call gives a negative log-likelihood, for instance '
                f"calmrl.imputers.GaussianLatent; got {type(imputer).__name__}"
            )
        if update == "stepwise" and not isinstance(imputer, StreamingImputer):
            raise InputError(
                f'{type(imputer).__name__} cannot be updated batch by batch; fit it first and pass update="frozen"'
            )
        if certainty and not isinstance(imputer, Imputer):
            raise InputError(
                f"certainty needs predictive standard deviations, and {type(imputer).__name__} has none; pass an imputer "
                "with impute(..., return_std=True), for instance calmrl.GaussianImputer"
            )
        if not 0 <= weight <= 1:
            raise InputError(f"weight must lie between 0 and 1; got {weight}")
        if m_every < 1:
            raise InputError(f"m_every must be 1 or more batches; got {m_every}")
        if momentum is not None:
            if update != "stepwise" or not isinstance(imputer, GaussianImputer):
                raise InputError('momentum needs update="stepwise" and a GaussianImputer, which has running statistics')
            if not 0 <= momentum < 1:
                raise InputError(f"momentum must be in [0, 1); got {momentum}")
            imputer.step_size = 1 - momentum
        self.objective: Any = LOSSES[objective]() if isinstance(objective, str) else objective
        self.imputer: Any = imputer
        self.update = update
        self.impute_from = impute_from
        self.impute_grad = impute_grad
        self.renormalize = renormalize
        self.certainty = certainty
        self.weight = weight
        self.m_every = m_every
        self.matching = matching
        self.matching_weight = matching_weight
        self.last: dict[str, Tensor] = {}
        self.seconds = 0.0  # spent updating the latent model and imputing, all calls so far; without the backward pass

    def forward(
        self,
        z: Mapping[str, Tensor],
        present: Tensor | None = None,
        *,
        start: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss of the batch. `generator` draws the negatives of the matching loss.

        `start` holds the representations of the same rows at the start of the stage, for `impute_from="start"`.
        """
        if (start is not None) != (self.impute_from == "start"):
            raise InputError(
                'start and impute_from="start" go together: pass the representations at the start of the stage as start='
            )
        views = check(z, present, values=present is None)
        mask = views.present
        seen = {name: tensor.detach() for name, tensor in (z if start is None else start).items()}
        started = time.perf_counter()
        learn = False
        if self.training and self.update == "stepwise":
            learn = self.weight > 0 and not self._solve_now(z)
            if not learn:
                with full_precision(mask):
                    self.imputer.partial_fit(seen, mask)
        completed = self._complete(views, learn, start) if self.weight > 0 else None
        self.seconds += time.perf_counter() - started
        terms = []
        if completed is not None:
            whole = self.objective(completed, mask.new_ones(len(mask), len(completed)))
            terms.append(whole if self.weight == 1 else self.weight * whole)
        if self.weight < 1:
            terms.append((1 - self.weight) * self.objective(z, mask))
        aligned = terms[0] if len(terms) == 1 else terms[0] + terms[1]
        self.last = {"objective": aligned.detach(), "missing": (~mask).to(torch.float32).mean()}
        value = aligned
        if self.training and self.update == "gradient":
            with full_precision(mask):
                likelihood = self.imputer(seen, mask)
            self.last["negative_log_likelihood"] = likelihood.detach()
            value = value + likelihood.to(value.dtype)
        if self.matching is not None:
            matched = self.matching(z, mask, generator=generator)
            self.last["matching"] = matched.detach()
            value = value + self.matching_weight * matched
        return value

    def _solve_now(self, z: Mapping[str, Tensor]) -> bool:
        """Whether this batch gets an M-step, or only enters the statistics while it is imputed."""
        if self.certainty or not _is_single(self.imputer, z):
            return True
        done: int = self.imputer.n_iter_
        return done < EACH or done % self.m_every == 0

    def complete(
        self,
        z: Mapping[str, Tensor],
        present: Tensor,
        learn: bool = False,
        start: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Observed vectors as they are, imputed ones where they are missing, scaled as asked for.

        `learn` lets the batch enter the running statistics of a Gaussian imputer on the way. With `start`, missing
        vectors are imputed from these representations of the same rows.
        """
        return dict(self._complete(check(z, present, values=False), learn, start))

    def _complete(self, views: Views, learn: bool, start: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        z, present = views.arrays, views.present
        with full_precision(present), _fixed(self.imputer):
            if not self.certainty and _is_single(self.imputer, z):  # the usual case, without a detour over all rows
                how = {"learn": learn, "unit": self.renormalize}
                if self.impute_grad and start is None:
                    return _by_name(self.imputer.complete_batch(views, **how), z, self.imputer)
                found = self.imputer.missing(z if start is None else start, present, **how)
                return {name: z[name].index_copy(0, found[name][0], found[name][1].to(z[name].dtype)) for name in z}
            given = dict(z if start is None else start)
            if not self.impute_grad:
                given = {name: tensor.detach() for name, tensor in given.items()}
            spread: dict[str, Tensor] = {}
            if self.certainty:
                means, spread = self.imputer.impute(given, present, return_std=True)
            else:
                means = self.imputer.transform(given, present)
        column = {name: present[:, j, None] for j, name in enumerate(z)}
        completed = {}
        for name, mean in means.items():
            imputed = self._scaled(mean, spread.get(name))
            completed[name] = torch.where(column[name], z[name], imputed) if name in z else imputed
        return completed

    def _scaled(self, mean: Tensor, std: Tensor | None = None) -> Tensor:
        if not self.renormalize and std is None:
            return mean
        square = (mean * mean).sum(1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)
        scale = square.rsqrt() if self.renormalize else torch.ones_like(square)
        if std is not None:
            scale = scale * (square / (square + (std.detach() ** 2).sum(1, keepdim=True))).sqrt()
        return mean * scale

    def latent_state(self) -> dict[str, Any] | None:
        """The imputer's state where it is not a module; None before it has seen any data."""
        if isinstance(self.imputer, nn.Module):
            return None
        if not isinstance(self.imputer, StatefulImputer):
            raise InputError(f"{type(self.imputer).__name__} has no get_state, so it cannot be saved in a state_dict")
        try:
            return self.imputer.get_state()
        except NotFittedError:
            return None

    def set_latent_state(self, state: dict[str, Any] | None) -> None:
        """Take over what `latent_state` gave; None leaves the imputer as it is."""
        if state is not None:
            self.imputer.set_state(state)

    def get_extra_state(self) -> Tensor:
        """`latent_state` as bytes in a tensor, so that every format that holds tensors can hold a `state_dict`."""
        return packed(self.latent_state())

    def set_extra_state(self, state: Tensor) -> None:
        self.set_latent_state(unpacked(state))


def _is_single(imputer: Any, z: Mapping[str, Tensor]) -> bool:
    """Whether the imputer is a fitted Gaussian one with one component, for exactly these modalities."""
    params = getattr(imputer, "parameters_", None) if isinstance(imputer, GaussianImputer) else None
    return params is not None and params.n_components == 1 and set(params.names) == set(z)


def _by_name(whole: Tensor, z: Mapping[str, Tensor], imputer: GaussianImputer) -> Mapping[str, Tensor]:
    """The modalities of `z`, in its order and dtypes, from a completed batch (N, D) of the imputer."""
    names, widths = imputer.parameters_.names, imputer.parameters_.widths
    if tuple(z) == names and len(set(widths)) == 1 and all(tensor.dtype == whole.dtype for tensor in z.values()):
        return Stacked(names, whole.view(len(whole), len(names), widths[0]))
    parts = dict(zip(names, whole.split(list(widths), dim=1), strict=True))
    return {name: parts[name].to(tensor.dtype) for name, tensor in z.items()}


@contextmanager
def _fixed(imputer: Any) -> Iterator[None]:
    """The likelihood alone fits a latent model that is a module: its parameters are constants while it imputes."""
    learned = [p for p in imputer.parameters() if p.requires_grad] if isinstance(imputer, nn.Module) else []
    for parameter in learned:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learned:
            parameter.requires_grad_(True)
