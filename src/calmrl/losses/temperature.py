"""A softmax temperature, learned or fixed."""

import math

import torch
from torch import nn

from calmrl.errors import InputError


def positive(name: str, value: float) -> float:
    """`value`, or an error when a temperature is not a positive finite number."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name} must be a positive number; got {value}")
    return float(value)


class Temperature(nn.Module):
    """A fixed number, or exp(log_value) with a parameter `log_value` that has to be given to the optimiser."""

    def __init__(self, value: float, learn: bool) -> None:
        super().__init__()
        self.fixed = None if learn else positive("temperature", value)
        if learn:
            self.log_value = nn.Parameter(torch.tensor(math.log(positive("temperature", value))))

    def forward(self, like: torch.Tensor) -> torch.Tensor:
        """The temperature as a scalar of the dtype and on the device of `like`."""
        if self.fixed is not None:
            return torch.full((), self.fixed, dtype=like.dtype, device=like.device)
        return self.log_value.to(like.dtype).exp()
