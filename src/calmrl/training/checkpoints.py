"""Checkpoints: directories that are written atomically.

    checkpoints/
      step-00000400/    weights.safetensors   parameters and buffers of the training step
                        ema.safetensors       their moving average, if one is kept
                        training.pt           optimiser, position in the data, random states (tensors and plain values)
                        checkpoint.json       the checksums of these files
                        latent/               the latent model with its running statistics
      best              the name of the best one

A checkpoint is written under another name, flushed to disk and renamed. Older ones are removed only after that, and
never the best. Loading executes nothing: safetensors, and `torch.load(weights_only=True)`.
"""

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from calmrl._support.distributed import world
from calmrl._support.filesystem import flush
from calmrl._support.output import read_sealed, replaced_file, write_sealed
from calmrl._support.parsing import reason_of
from calmrl._support.tensor_files import load_state, load_tensors, plain, save_state
from calmrl.errors import InputError
from calmrl.training.optimise import MovingAverage
from calmrl.training.plan import Position
from calmrl.training.step import Step

NAME = re.compile(r"step-(\d{8})")
DRAFT = ".draft-"
HEADER, FORMAT = "checkpoint.json", "calmrl.checkpoint"
EMA, LATENT = "ema.safetensors", "latent"  # parts that a checkpoint may have


@dataclass
class Checkpoint:
    """All that a training run needs to go on as if it had not stopped."""

    weights: dict[str, torch.Tensor]
    training: dict[str, Any]
    latent: dict[str, Any] | None = None  # {"meta", "tensors"} of the imputer
    ema: dict[str, torch.Tensor] = field(default_factory=dict)


def write(folder: Path, step: int, content: Checkpoint, *, best: bool, keep: int) -> Path:
    """Write a checkpoint, then remove all but the `keep` newest and the best one."""
    target = folder / f"step-{step:08d}"
    draft = folder / f"{DRAFT}{target.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_drafts(folder)
        if not target.exists():  # it does after a run that was resumed and stopped before it made a step
            draft.mkdir()
            save_file(plain(content.weights), draft / "weights.safetensors")
            if content.ema:
                save_file(plain(content.ema), draft / EMA)
            torch.save(content.training, draft / "training.pt")
            if content.latent is not None:
                save_state(content.latent, draft / LATENT, overwrite=False)
            about = {"format": FORMAT, "step": step, "latent": content.latent is not None}
            write_sealed(draft / HEADER, about, sorted(file.name for file in draft.iterdir() if file.is_file()))
            flush(draft)
            os.replace(draft, target)
            flush(folder, inside=False)
        if best:
            mark_best(folder, step)
    except (
        OSError,
        SafetensorError,
        RuntimeError,
        InputError,
    ) as error:  # torch, safetensors: their own for a full disk
        if draft.exists():
            shutil.rmtree(draft, ignore_errors=True)
        raise InputError(
            f"the checkpoint of step {step} could not be written to {folder} ({' '.join(str(error).split())[:160]}); "
            "earlier checkpoints are intact. Free some space, then continue with `resume=True`"
        ) from error
    tidy(folder, keep)
    return target


def mark_best(folder: Path, step: int) -> None:
    """Note down which checkpoint is the best one."""
    with replaced_file(folder / "best") as draft:
        draft.write_text(f"step-{step:08d}\n", encoding="utf-8")


def newest(folder: Path) -> Path | None:
    """The last whole checkpoint."""
    checkpoints = _all(folder)
    return checkpoints[-1] if checkpoints else None


def best(folder: Path) -> Path | None:
    """The best whole checkpoint, by the score at its validation."""
    if not (folder / "best").is_file():
        return None
    path = folder / (folder / "best").read_text(encoding="utf-8").strip()
    return path if path in _all(folder) else None


def read(path: Path) -> Checkpoint:
    """The content of a checkpoint, on the CPU; damage is an error that names the file."""
    try:
        about = read_sealed(path / HEADER)
        training = torch.load(path / "training.pt", map_location="cpu", weights_only=True)
        ema = load_tensors(path / EMA) if (path / EMA).exists() else {}
        weights = load_tensors(path / "weights.safetensors")
        latent = load_state(path / LATENT) if about["latent"] else None
    except InputError as error:
        raise InputError(f"{error}; remove {path} to continue from the checkpoint before") from error
    except Exception as error:  # unpickling damaged bytes raises anything
        raise InputError(
            f"{path} is damaged ({reason_of(error)}); remove it to continue from the one before"
        ) from error
    return Checkpoint(weights, training, latent, ema)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir())


def tidy(folder: Path, keep: int) -> None:
    """Remove all but the `keep` newest checkpoints and the best one, and what a kill left."""
    for old in _all(folder)[:-keep]:
        if old != best(folder):
            os.replace(old, folder / f"{DRAFT}{old.name}")  # a kill in the middle leaves a draft, not half a checkpoint
    _remove_drafts(folder)


def _remove_drafts(folder: Path) -> None:
    for leftover in folder.glob(f"{DRAFT}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


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
