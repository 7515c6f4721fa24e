"""torch.distributed: starting as one of several processes, and all messages between them; one process is not a special case."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from calmrl.errors import InputError, ProcessLost

T = TypeVar("T")


def world() -> tuple[int, int]:
    """(number of processes, rank of this one); (1, 0) when torch.distributed is not running."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


def gather_objects(mine: T) -> list[T]:
    """One object of every process, in the order of the ranks."""
    size, _ = world()
    if size == 1:
        return [mine]
    every = [mine] * size
    dist.all_gather_object(every, mine)
    return every


def all_sum(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors summed over all processes, in one message; without other processes, the tensors themselves."""
    size, _ = world()
    if size == 1 or not tensors:
        return list(tensors)
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    parts = flat.split([t.numel() for t in tensors])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]


def sum_over_processes(number: float, device: torch.device) -> float:
    """A number summed over all processes."""
    return float(number) if world()[0] == 1 else float(all_sum([torch.tensor(float(number), device=device)])[0])


def mean_over_processes(
    values: Mapping[str, float], rows: int, of_rows: Sequence[str], device: torch.device
) -> dict[str, float]:
    """The mean of every value over the processes; of those `of_rows`, which are means over a process's own rows, weighted by
    their number. Losses are not among these: they are scaled so that their plain mean is that of all rows.
    """
    size = world()[0]
    if size == 1:
        return dict(values)
    weight = {name: rows if name in of_rows else 1 for name in values}
    mine = [value * weight[name] if weight[name] else 0.0 for name, value in values.items()]
    (total,) = all_sum([torch.tensor([*mine, rows], dtype=torch.float64, device=device)])
    *sums, all_rows = total.tolist()
    return {name: value / (all_rows if name in of_rows else size) for name, value in zip(values, sums, strict=True)}


def own_rows(z: Mapping[str, torch.Tensor], present: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """This process's share of rows that all processes hold, for what adds up over the processes."""
    size, rank = world()
    return {name: rows[rank::size] for name, rows in z.items()}, present[rank::size]


def gather_headers(header: Sequence[int], device: torch.device) -> list[list[int]]:
    """The same few integers of every process, in the order of the ranks."""
    size, _ = world()
    if size == 1:
        return [list(header)]
    mine = torch.tensor(list(header), dtype=torch.int64, device=device)
    every = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(every, mine)
    return torch.stack(every).tolist()


def gather_rows(tensor: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """The rows of all processes one after the other, in the order of the ranks, with gradient.

    `counts` holds every process's number of rows; all else of the shapes must agree. The backward pass sums what all
    processes want for a row, so each has to take part in it: the result requires a gradient where `tensor` does not.
    """
    size, _ = world()
    if size == 1:
        return tensor
    if torch.is_grad_enabled() and tensor.dtype.is_floating_point and not tensor.requires_grad:
        tensor = tensor.detach().requires_grad_()
    return _GatherRows.apply(tensor, tuple(counts))


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, counts: tuple[int, ...]) -> torch.Tensor:
        ctx.counts = counts
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        every = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(every, padded)
        return torch.cat([part[:count] for part, count in zip(every, counts, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        _, rank = world()
        start = sum(ctx.counts[:rank])
        return gradient[start : start + ctx.counts[rank]], None


WAIT_SECONDS = 600.0  # how long a process waits for another one before it counts as lost
LOST = (
    "gloo",
    "nccl",
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "timed out waiting",
    "pair closure",
)


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
    with explain_lost_process("start all of them again", started):
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
    """Take leave of the other processes, if there are any.

    The group itself is kept to the end of this process. A wrapped model that outlives it would take it apart while holding
    Python's lock, for which gloo's threads wait while they let go of the tensors of a last message: both would wait forever.
    """
    if dist.is_available() and dist.is_initialized():
        _left.append(dist.group.WORLD)
        dist.destroy_process_group()


_left: list[object] = []


@contextmanager
def explain_lost_process(advice: str, size: int | None = None) -> Iterator[None]:
    """An error of the messages between processes becomes a `ProcessLost` that ends with the advice.

    `size` is the number of processes, where they are not connected yet.
    """
    size = world()[0] if size is None else size
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
    """Refuse what would train something other than was asked for, before any data are read."""
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
