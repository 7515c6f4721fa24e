"""All messages between processes: the same calls work in one process and in many."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

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
