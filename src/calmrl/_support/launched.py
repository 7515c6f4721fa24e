"""Starting up as one of several processes, and what is said when one of them is lost."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from calmrl._support.distributed import world
from calmrl.errors import InputError, ProcessLost

WAIT_SECONDS = 600.0  # how long a process waits for another one before it counts as lost
LOST = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe", "timed out waiting")


def join(timeout: float = WAIT_SECONDS) -> tuple[int, int]:
    """Take part in the processes that `torchrun` or `accelerate launch` started: (their number, rank of this one).

    Parameters
    ----------
    timeout : float
        Seconds to wait for another process, in any message, before it counts as lost.
    """
    from accelerate import PartialState

    started = int(os.environ.get("WORLD_SIZE", "1"))
    _check_launcher(started)
    with _lost_is_said(started, "start all of them again"):
        state = PartialState(cpu=_on_cpu(started), timeout=timedelta(seconds=timeout))
    if state.num_processes != started:
        raise InputError(
            f"{started} processes were started, but this one counts {state.num_processes}; start them with "
            f"torchrun --nproc_per_node {started} -m calmrl train ..."
        )
    return state.num_processes, state.process_index


def wait_for_all() -> None:
    """Return when every process has come here."""
    from accelerate import PartialState

    PartialState().wait_for_everyone()


def leave() -> None:
    """Take leave of the other processes, if there are any."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def lost_is_said(advice: str) -> Iterator[None]:
    """An error of the messages between processes becomes a `ProcessLost` that ends with the advice."""
    with _lost_is_said(world()[0], advice):
        yield


@contextmanager
def _lost_is_said(size: int, advice: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if size == 1 or not (isinstance(error, dist.DistError) or any(word in reason.lower() for word in LOST)):
            raise
        late = "timed out" in reason.lower() or "timeout" in reason.lower()
        what = "did not answer in time" if late else "has ended"
        raise ProcessLost(
            f"another of the {size} processes {what}, so this one ends too; {advice} ({reason[:160]})"
        ) from error


def _on_cpu(started: int) -> bool:
    """Whether to train on the CPU: ACCELERATE_USE_CPU asks for it, or several processes find no GPUs to share."""
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "on")
    return asked or (started > 1 and not (torch.cuda.is_available() or torch.xpu.is_available()))


def _check_launcher(started: int) -> None:
    """Refuse what would train something else than was asked for, before any data are read."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not _on_cpu(started) and torch.cuda.is_available() and here > torch.cuda.device_count():
        raise InputError(
            f"{here} processes were started, but there are {torch.cuda.device_count()} GPUs; start one process per GPU, "
            "or set ACCELERATE_USE_CPU=true to train on the CPU"
        )
    lonely = "MASTER_ADDR" in os.environ and "ACCELERATE_MIXED_PRECISION" in os.environ
    if lonely and started == 1 and "LOCAL_RANK" not in os.environ:
        raise InputError(
            "accelerate launch was asked for several processes but started only one: with --cpu, or where it finds no "
            "GPU, it starts no more; use: torchrun --nproc_per_node 2 -m calmrl train ..."
        )
