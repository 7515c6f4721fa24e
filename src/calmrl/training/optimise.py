"""The optimiser's parts: groups, the learning-rate schedule, a moving average of the weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from calmrl.errors import InputError
from calmrl.training.step import Step


def make_optimiser(
    step: Step,
    *,
    learning_rate: float,
    encoder_learning_rate: float | None = None,
    betas: tuple[float, float] = (0.9, 0.98),
    weight_decay: float = 0.01,
) -> torch.optim.AdamW:
    """AdamW. Encoders may have a rate of their own. Vectors, scalars and the latent model are not decayed.

    A group keeps its rate under "base"; the schedule multiplies that.
    """
    encoders = {id(p) for p in step.model.encoder_parameters()} if hasattr(step.model, "encoder_parameters") else set()
    if encoder_learning_rate is not None and not encoders:
        raise InputError("encoder_learning_rate is set, but the model has no encoders, only heads; remove it")
    latent = {id(p) for p in step.latent_parameters()}
    slow = learning_rate if encoder_learning_rate is None else encoder_learning_rate
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for parameter in step.parameters():
        if parameter.requires_grad:
            rate = slow if id(parameter) in encoders else learning_rate
            decayed = parameter.ndim > 1 and id(parameter) not in latent
            groups.setdefault((rate, weight_decay if decayed else 0.0), []).append(parameter)
    if not groups:
        raise InputError("every parameter is frozen, so there is nothing to train; freeze fewer")
    listed = [
        {"params": parameters, "lr": rate, "base": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]
    fused = all(parameter.device.type == "cpu" for parameters in groups.values() for parameter in parameters)
    return torch.optim.AdamW(listed, betas=betas, fused=fused or None)


def freeze(model: torch.nn.Module, patterns: Sequence[str]) -> None:
    """Keep the parameters whose names match one of the patterns ("heads.text.*") as they are."""
    named = dict(model.named_parameters())
    for pattern in patterns:
        matched = [name for name in named if fnmatchcase(name, pattern)]
        if not matched:
            shown = ", ".join(list(named)[:6]) + (", ..." if len(named) > 6 else "")
            raise InputError(f'freeze: no parameter is named "{pattern}"; there are {shown}')
        for name in matched:
            named[name].requires_grad_(False)


def schedule(step: int, total: int, warmup_ratio: float) -> float:
    """Linear from 0 to 1 over the first `warmup_ratio` of the steps, then linear to 0. `step` counts from 0."""
    warm = warmup_ratio * total
    return min(1.0, (step + 1) / warm if warm > 0 else 1.0, max(0.0, (total - step) / max(1.0, total - warm)))


class MovingAverage:
    """Exponential moving average of all floating-point tensors of a training step."""

    def __init__(self, step: Step, decay: float) -> None:
        self.decay = decay
        self.live = step.tensors()  # the step's own tensors, not copies
        self.tensors = {name: tensor.clone() for name, tensor in self.live.items()}

    @torch.no_grad()
    def update(self) -> None:
        for name, tensor in self.live.items():
            if tensor.is_floating_point():
                self.tensors[name].lerp_(tensor, 1 - self.decay)
            else:
                self.tensors[name].copy_(tensor)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        _copy(self.tensors, tensors)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The step has the averaged weights for the time of the block."""
        own = {name: tensor.clone() for name, tensor in self.live.items()}
        _copy(self.live, self.tensors)
        try:
            yield
        finally:
            _copy(self.live, own)


@torch.no_grad()
def _copy(into: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in into.items():
        tensor.copy_(tensors[name])
