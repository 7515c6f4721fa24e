"""The optimiser's parts: groups, the learning-rate schedule, a moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from calmrl.train.step import Step


def make_optimiser(
    step: Step,
    *,
    learning_rate: float,
    encoder_learning_rate: float | None = None,
    betas: tuple[float, float] = (0.9, 0.98),
    weight_decay: float = 0.01,
) -> torch.optim.AdamW:
    """AdamW. Vectors and scalars (biases, norms, temperatures) are not decayed; encoders may have a rate of their own.

    A group keeps its rate under "base"; the schedule multiplies that.
    """
    encoders: set[int] = set()
    if hasattr(step.model, "encoder_parameters"):
        encoders = {id(parameter) for parameter in step.model.encoder_parameters()}
    slow = learning_rate if encoder_learning_rate is None else encoder_learning_rate
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for parameter in step.parameters():
        if parameter.requires_grad:
            rate = slow if id(parameter) in encoders else learning_rate
            groups.setdefault((rate, weight_decay if parameter.ndim > 1 else 0.0), []).append(parameter)
    listed = [
        {"params": parameters, "lr": rate, "base": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]
    return torch.optim.AdamW(listed, betas=betas)


def schedule(step: int, total: int, warmup_ratio: float) -> float:
    """Linear from 0 to 1 over the first `warmup_ratio` of the steps, then linear to 0. `step` counts from 0."""
    warm = warmup_ratio * total
    return min(1.0, (step + 1) / warm if warm > 0 else 1.0, max(0.0, (total - step) / max(1.0, total - warm)))


class MovingAverage:
    """Exponential moving average of all floating-point tensors of a training step."""

    def __init__(self, step: Step, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in step.tensors().items()}

    @torch.no_grad()
    def update(self, step: Step) -> None:
        for name, tensor in step.tensors().items():
            if tensor.is_floating_point():
                self.tensors[name].lerp_(tensor, 1 - self.decay)
            else:
                self.tensors[name].copy_(tensor)

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            self.tensors[name].copy_(tensor)


@contextmanager
def averaged(step: Step, average: MovingAverage | None) -> Iterator[None]:
    """The step with averaged weights, for the time of the block; without an average, as it is."""
    if average is None:
        yield
        return
    own = {name: tensor.detach().clone() for name, tensor in step.tensors().items()}
    _copy(step, average.tensors)
    try:
        yield
    finally:
        _copy(step, own)


@torch.no_grad()
def _copy(step: Step, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in step.tensors().items():
        tensor.copy_(tensors[name])
