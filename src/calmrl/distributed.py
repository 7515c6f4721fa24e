"""One process is not a special case: the same calls work with and without torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


def world() -> tuple[int, int]:
    """(number of processes, rank of this one); (1, 0) when torch.distributed is not running."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


def all_sum(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors summed over all processes, in one message; without other processes, the tensors themselves."""
    size, _ = world()
    if size == 1 or not tensors:
        return list(tensors)
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    parts = flat.split([t.numel() for t in tensors])
    return [part.reshape(t.shape) for part, t in zip(parts, tensors, strict=True)]
