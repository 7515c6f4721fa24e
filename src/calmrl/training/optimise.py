"""The optimiser's parts: groups, the learning-rate schedule, a moving average of the weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from calmrl.errors import InputError
from calmrl.training.plan import TrainerOptions
from calmrl.training.step import Step


def make_optimiser(step: Step, options: TrainerOptions) -> torch.optim.AdamW:
    """AdamW. Encoders may have a rate of their own, all together (`encoder_learning_rate`) or, in `rates`, tower by tower.

    With `decay` "matrices", vectors and scalars are not decayed; with "names", parameters with "bias" in their name, or
    called LayerNorm.weight, are not, as in the public code of VAST. The latent model never is. A group keeps its rate
    under "base"; the schedule multiplies that.
    """
    own_rates = _own_rates(step.model, options.encoder_learning_rate, options.rates)
    latent = {id(p) for p in step.latent_parameters()}
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in step.named_parameters():
        if parameter.requires_grad:
            rate = own_rates.get(id(parameter), options.learning_rate)
            decayed = id(parameter) not in latent and _is_decayed(name, parameter, options.decay)
            groups.setdefault((rate, options.weight_decay if decayed else 0.0), []).append(parameter)
    if not groups:
        raise InputError("every parameter is frozen, so there is nothing to train; freeze fewer")
    listed = [
        {"params": parameters, "lr": rate, "base": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]
    first, second = options.betas
    fused = all(parameter.device.type == "cpu" for parameters in groups.values() for parameter in parameters)
    return torch.optim.AdamW(listed, betas=(first, second), eps=options.epsilon, fused=fused or None)


def _own_rates(model: Any, every: float | None, rates: Mapping[str, float]) -> dict[int, float]:
    """Parameter (its id) -> learning rate, for the parameters of encoders that have one."""
    towers = model.towers() if hasattr(model, "towers") else {}
    encoders = model.encoder_parameters() if hasattr(model, "encoder_parameters") else []
    by_parameter = {} if every is None else {id(parameter): every for parameter in encoders}
    if every is not None and not by_parameter:
        raise InputError("encoder_learning_rate is set, but the model has no encoders, only heads; remove it")
    for name, rate in rates.items():
        if name not in towers:
            there = ", ".join(towers) or "none"
            raise InputError(f'optimiser.rates names "{name}", but the towers of the model are: {there}')
        by_parameter |= {id(parameter): rate for parameter in towers[name].parameters()}
    return by_parameter


def _is_decayed(name: str, parameter: torch.nn.Parameter, rule: str) -> bool:
    return parameter.ndim > 1 if rule == "matrices" else "bias" not in name and "LayerNorm.weight" not in name


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
