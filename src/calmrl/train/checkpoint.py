"""Checkpoints: directories that appear whole or not at all.

    checkpoints/
      step-00000400/    weights.safetensors   parameters and buffers of the training step
                        ema.safetensors       their moving average, if one is kept
                        training.pt           optimiser, position in the data, random states (tensors and plain values)
                        latent/               the latent model with its running statistics
      best              the name of the best one

A checkpoint is written under another name, flushed to disk and renamed. Older ones are removed only after that, and
never the best. Loading executes nothing: safetensors, and `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from calmrl.errors import InputError
from calmrl.latent.storage import load_state, save_state
from calmrl.output import new_file

NAME = re.compile(r"step-(\d{8})")
DRAFT = ".draft-"


@dataclass
class Checkpoint:
    """All that a training run needs to go on as if it had not stopped."""

    weights: dict[str, torch.Tensor]
    training: dict[str, Any]
    latent: dict[str, Any] | None = None  # {"meta", "tensors"} of the imputer
    ema: dict[str, torch.Tensor] = field(default_factory=dict)


def write(folder: Path, step: int, content: Checkpoint, *, best: bool, keep: int) -> Path:
    """Write a checkpoint, then remove all but the `keep` newest and the best one."""
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{DRAFT}*"):
        shutil.rmtree(leftover)
    target = folder / f"step-{step:08d}"
    draft = folder / f"{DRAFT}{target.name}"
    if target.exists():  # a run that was resumed and stopped before it made a step
        return target
    try:
        draft.mkdir()
        save_file(_plain(content.weights), draft / "weights.safetensors")
        if content.ema:
            save_file(_plain(content.ema), draft / "ema.safetensors")
        torch.save(content.training, draft / "training.pt")
        if content.latent is not None:
            save_state(content.latent, draft / "latent", overwrite=False)
        _flush(draft)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise InputError(
            f"the checkpoint of step {step} could not be written to {folder} ({error}); earlier checkpoints are whole. "
            "Make room, then go on with --resume"
        ) from error
    os.replace(draft, target)
    if best:
        with new_file(folder / "best", force=True) as text:
            text.write_text(target.name + "\n", encoding="utf-8")
    _tidy(folder, keep)
    return target


def newest(folder: Path) -> Path | None:
    """The last whole checkpoint."""
    found = _all(folder)
    return found[-1] if found else None


def best(folder: Path) -> Path | None:
    """The best whole checkpoint, by the score at its validation."""
    if not (folder / "best").is_file():
        return None
    path = folder / (folder / "best").read_text(encoding="utf-8").strip()
    return path if path in _all(folder) else None


def step_of(path: Path) -> int:
    """step-00000400 -> 400"""
    return int(path.name.removeprefix("step-"))


def read(path: Path) -> Checkpoint:
    """The content of a checkpoint, on the CPU; damage is an error that names the file."""
    try:
        training = torch.load(path / "training.pt", map_location="cpu", weights_only=True)
        ema = load_file(path / "ema.safetensors") if (path / "ema.safetensors").exists() else {}
        weights = load_file(path / "weights.safetensors")
    except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise InputError(
            f"{path} is damaged ({' '.join(str(error).split())[:120]}); remove it to go on from the one before"
        ) from error
    latent = load_state(path / "latent") if (path / "latent").exists() else None
    return Checkpoint(weights, training, latent, ema)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir())


def _tidy(folder: Path, keep: int) -> None:
    for old in _all(folder)[:-keep]:
        if old != best(folder):
            gone = folder / f"{DRAFT}{old.name}"
            os.replace(old, gone)  # a kill in the middle of removing leaves a draft, not half a checkpoint
            shutil.rmtree(gone)


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def _flush(folder: Path) -> None:
    """Ask the system to put a folder and the files in it on disk."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
