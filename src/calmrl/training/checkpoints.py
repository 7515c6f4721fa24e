"""What a run writes: its records, and checkpoints that are written atomically.

    metrics.jsonl         one JSON object per line, `kind` "start" (of a stage), "train", "validation", "failed" or "end"
    checkpoints/
      step-00000400/    weights.safetensors   parameters and buffers of the training step
                        ema.safetensors       their moving average, if one is kept
                        training.pt           optimiser, position in the data, random states (tensors and plain values)
                        checkpoint.json       the checksums of these files
                        latent/               the latent model with its running statistics
      best              the name of the best one

A checkpoint is flushed to disk before it gets its name. Older ones are removed only after that, and never the best. Loading
executes nothing: safetensors, and `torch.load(weights_only=True)`.
"""

import json
import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from calmrl._support.filesystem import flush, put_in_place, remove_leftovers, scratch
from calmrl._support.output import check_writable, new_file, read_sealed, replaced_file, write_sealed
from calmrl._support.parsing import parsing, reason_of
from calmrl._support.tensor_files import load_state, load_tensors, plain, save_state
from calmrl.errors import InputError

NAME = re.compile(r"step-(\d{8})")
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
    try:
        if not target.exists():  # it does after a run that was resumed and stopped before it made a step
            with scratch(target) as place:
                draft = place / "new"
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
                put_in_place(draft, target)
            flush(folder, inside=False)
        if best:
            mark_best(folder, step)
    except (
        OSError,
        SafetensorError,
        RuntimeError,
        InputError,
    ) as error:  # torch, safetensors: their own for a full disk
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
    remove_leftovers(folder)
    for old in _all(folder)[:-keep]:
        if old != best(folder):
            with scratch(old) as place:  # a kill in the middle leaves no half of a checkpoint
                os.replace(old, place / "removed")


# ---- records


class Records:
    """Appends to `metrics.jsonl`; a line is on its way to the disk when `write` returns.

    With `upto`, what came after the checkpoint of that step is removed first: a resumed run writes it again.
    """

    def __init__(self, path: Path, *, upto: int | None = None) -> None:
        self.path = path
        if upto is not None and path.exists():
            kept = [line for line, record in _whole_records(path) if _before(record, upto)]
            with new_file(path, force=True) as draft:
                draft.write_text("".join(kept), encoding="utf-8")
        check_writable(path)
        self.file = path.open("a", encoding="utf-8")

    def write(self, kind: str, step: int, **values: Any) -> None:
        line = json.dumps({"kind": kind, "step": step, **{k: _number(v) for k, v in values.items()}})
        try:
            self.file.write(line + "\n")
            self.file.flush()
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be written ({error}); free some space, then continue with `resume=True`"
            ) from error

    def close(self) -> None:
        with suppress(OSError):  # what was not written has been reported by `write`
            self.file.close()


def read_records(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The records of a run, or those of one kind. A last line that was cut off by a kill is left out."""
    return [record for _, record in _whole_records(path) if kind is None or record["kind"] == kind]


def _whole_records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(line, record) of every whole line; a line that is not a record is an error that names it."""
    with parsing(path, "records of a run", "restore it, or start the run again"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    records = []
    for number, line in enumerate(lines, start=1):
        if line.endswith("\n"):
            with parsing(f"{path} line {number}", "a record of a run", "remove the line, or start the run again"):
                record = json.loads(line)
                if not isinstance(record["kind"], str) or not isinstance(record["step"], int):
                    raise ValueError("kind is a text and step a number")
            records.append((line, record))
    return records


def _before(record: dict[str, Any], step: int) -> bool:
    """Whether a record was there when the checkpoint of this step was written."""
    return record["step"] < step or (record["step"] == step and record["kind"] in ("train", "validation"))


def _number(value: Any) -> Any:
    """Not-a-number and infinity are no JSON; they become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
