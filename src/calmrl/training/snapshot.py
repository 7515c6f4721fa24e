"""A training run as the content of a checkpoint, and back."""

from typing import Any

import torch

from calmrl._support.distributed import world
from calmrl.training.checkpoint import Checkpoint
from calmrl.training.optimise import MovingAverage
from calmrl.training.plan import Position
from calmrl.training.step import Step


def take(
    step: Step, optimiser: Any, scaler: Any, average: MovingAverage | None, at: Position, random: list[torch.Tensor]
) -> Checkpoint:
    """Copies of everything, so that training may go on while they are held. `random` are torch's states in all processes."""
    align = step.calibration
    return Checkpoint(
        {name: tensor.detach().clone() for name, tensor in step.tensors().items()},
        {
            "position": dict(vars(at)),
            "optimiser": optimiser.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": random,
        },
        None if align is None else align.latent_state(),
        {} if average is None else {name: tensor.clone() for name, tensor in average.tensors.items()},
    )


def put_back(content: Checkpoint, step: Step, optimiser: Any, scaler: Any, average: MovingAverage | None) -> Position:
    """Everything as it was; where the run stood."""
    put_weights(content.weights, content, step)
    if average is not None:
        average.load(content.ema)
    saved = content.training
    optimiser.load_state_dict(saved["optimiser"])
    if scaler is not None and saved["scaler"] is not None:
        scaler.load_state_dict(saved["scaler"])
    if len(saved["random"]) == world()[0]:
        torch.set_rng_state(saved["random"][world()[1]])
    return Position(**saved["position"])


def put_weights(weights: dict[str, torch.Tensor], content: Checkpoint, step: Step) -> None:
    """These weights and the latent model of the checkpoint."""
    step.load_tensors(weights)
    if step.calibration is not None:
        step.calibration.set_latent_state(content.latent)
